{{- define "vllm-sidecar.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "vllm-sidecar.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "vllm-sidecar.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vllm-sidecar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Without versions, so that a new chart alone restarts no pod. */ -}}
{{- define "vllm-sidecar.podLabels" -}}
{{ include "vllm-sidecar.selectorLabels" . }}
app.kubernetes.io/part-of: vllm-sidecar
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vllm-sidecar.labels" -}}
{{ include "vllm-sidecar.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "vllm-sidecar.image" -}}
{{- $registry := default .Values.image.registry (.Values.global | default dict).imageRegistry -}}
{{- $name := empty $registry | ternary .Values.image.repository (printf "%s/%s" $registry .Values.image.repository) -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "vllm-sidecar.serviceAccountName" -}}
{{- default (.Values.serviceAccount.create | ternary (include "vllm-sidecar.fullname" .) "default") .Values.serviceAccount.name -}}
{{- end -}}

{{- define "vllm-sidecar.settingsName" -}}
{{- default (printf "%s-settings" (include "vllm-sidecar.fullname" .)) .Values.settingsConfigMap.name -}}
{{- end -}}

{{- /* Whether the cluster has a kind of the Prometheus operator. Give `helm template` --api-versions. */ -}}
{{- define "vllm-sidecar.has" -}}
{{- if .context.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) }}yes{{ end -}}
{{- end -}}
