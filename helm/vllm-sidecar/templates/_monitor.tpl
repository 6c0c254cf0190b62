{{- /* The one endpoint of a monitor. */ -}}
{{- define "vllm-sidecar.endpoint" -}}
port: {{ .context.Values.portName }}
path: /metrics
scheme: {{ .monitor.scheme }}
honorLabels: {{ .monitor.honorLabels }}
{{- with .monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with .monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .monitor.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .monitor.relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Metadata of an object of the Prometheus operator: `object` has labels, annotations and a namespace. */ -}}
{{- define "vllm-sidecar.monitoringMetadata" -}}
name: {{ include "vllm-sidecar.fullname" .context }}
namespace: {{ default .context.Release.Namespace .object.namespace }}
labels:
  {{- include "vllm-sidecar.labels" .context | nindent 2 }}
  {{- with .object.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .object.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* How the port is asked: http or https. */ -}}
{{- define "vllm-sidecar.scheme" -}}
{{- .Values.podMonitor.enabled | ternary .Values.podMonitor.scheme .Values.serviceMonitor.scheme -}}
{{- end -}}
