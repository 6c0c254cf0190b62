{{- /*
The sidecar as an entry of a pod's initContainers, and the list of volumes it needs. For a chart that depends on this one:

    initContainers:
      - {{- include "vllm-sidecar.container" (dict "context" (index .Subcharts "vllm-sidecar")) | nindent 8 }}
    volumes:
      {{- include "vllm-sidecar.volumes" (dict "context" (index .Subcharts "vllm-sidecar")) | nindent 6 }}

`profile` in the second dict chooses one of the values' profiles.
*/ -}}
{{- define "vllm-sidecar.container" -}}
{{- $values := .context.Values -}}
{{- include "vllm-sidecar.checkContainer" .context -}}
name: {{ $values.sidecar.name }}
{{ include "vllm-sidecar.containerBody" .context }}
# A native sidecar: up before the engine, and ended after it.
restartPolicy: Always
{{- if $values.sidecar.resources }}
resources:
  {{- toYaml $values.sidecar.resources | nindent 2 }}
{{- else if $values.sidecar.guaranteed }}
resources:
  requests: {cpu: 200m, memory: 128Mi}
  limits: {cpu: 200m, memory: 128Mi}
{{- else }}
resources:
  requests: {cpu: 50m, memory: 128Mi}
  limits: {memory: 128Mi}
{{- end }}
{{- with $values.sidecar.livenessProbe }}
livenessProbe:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.sidecar.extraFields }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What a container of the sidecar is anywhere, without name and resources. */ -}}
{{- define "vllm-sidecar.containerBody" -}}
image: {{ include "vllm-sidecar.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - --never-exit
  - --config.file=/etc/vllm-sidecar/settings.yaml
  - --web.listen-address=:{{ .Values.port }}
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $leader := and (eq .Values.mode "sidecar") .Values.sidecar.leaderOnly }}
{{- if or $leader .Values.extraEnv }}
env:
  {{- if $leader }}
  - name: VLLM_SIDECAR_WORKER_INDEX
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: {{ .Values.portName }}
    containerPort: {{ .Values.port }}
    protocol: TCP
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  # A folder, not a subPath, which would never change.
  - name: vllm-sidecar-settings
    mountPath: /etc/vllm-sidecar
    readOnly: true
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "vllm-sidecar.volumes" -}}
- name: vllm-sidecar-settings
  configMap:
    name: {{ include "vllm-sidecar.settingsName" .context }}{{ with .profile }}-{{ . }}{{ end }}
    # A pod must start without it: the sidecar says config_valid 0 and goes on.
    optional: true
{{- with .context.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vllm-sidecar.checkContainer" -}}
{{- range $probe := list "readinessProbe" "startupProbe" -}}
{{- if hasKey $.Values.sidecar.extraFields $probe -}}
{{- fail (printf "sidecar.extraFields.%s: remove it. A probe of a native sidecar decides whether the engine's pod starts and is ready, so that monitoring could take a healthy engine out of service." $probe) -}}
{{- end -}}
{{- end -}}
{{- range $field := list "name" "image" "imagePullPolicy" "args" "env" "envFrom" "ports" "securityContext" "volumeMounts" "restartPolicy" "resources" "livenessProbe" -}}
{{- if hasKey $.Values.sidecar.extraFields $field -}}
{{- fail (printf "sidecar.extraFields.%s: the container has that field already; set it by its own value." $field) -}}
{{- end -}}
{{- end -}}
{{- with .Values.sidecar.livenessProbe -}}
{{- if lt (mul (default 10 .periodSeconds) (default 3 .failureThreshold)) 60 -}}
{{- fail "sidecar.livenessProbe: periodSeconds times failureThreshold must be 60 or more. A restart of the sidecar makes the engine's pod unready for a moment." -}}
{{- end -}}
{{- end -}}
{{- $resources := .Values.sidecar.resources -}}
{{- if and .Values.sidecar.guaranteed $resources (ne (toJson $resources.requests) (toJson $resources.limits)) -}}
{{- fail "sidecar.guaranteed: sidecar.resources must have requests equal to limits, or be left out." -}}
{{- end -}}
{{- end -}}
