{{- /* A duration such as 5m in seconds; nothing for what is none. */ -}}
{{- define "vllm-sidecar.seconds" -}}
{{- $text := toString . -}}
{{- if regexMatch "^[0-9]+[smhd]$" $text -}}
{{- mul (trimSuffix (regexFind "[smhd]$" $text) $text) (get (dict "s" 1 "m" 60 "h" 3600 "d" 86400) (regexFind "[smhd]$" $text)) -}}
{{- end -}}
{{- end -}}

{{- /* The thresholds in force, as YAML. */ -}}
{{- define "vllm-sidecar.thresholds" -}}
{{- $thresholds := mergeOverwrite (.Files.Get "rules/thresholds.yaml" | fromYaml) .Values.prometheusRule.thresholds -}}
{{- $full := include "vllm-sidecar.fullname" . -}}
{{- if and (not (hasKey .Values.prometheusRule.thresholds "sidecar_job_regex")) (not (contains "vllm-sidecar" $full)) -}}
{{- $_ := set $thresholds "sidecar_job_regex" (printf ".*%s.*" $full) -}}
{{- end -}}
{{- $interval := int (include "vllm-sidecar.seconds" $thresholds.scrape_interval) -}}
{{- range $name, $value := $thresholds -}}
{{- $seconds := int (include "vllm-sidecar.seconds" $value) -}}
{{- if and (regexMatch "(window|short)$" $name) (lt $seconds (mul 4 $interval)) -}}
{{- fail (printf "prometheusRule.thresholds.%s: %v is shorter than four scrape intervals of %v; make it longer, or scrape_interval shorter." $name $value $thresholds.scrape_interval) -}}
{{- end -}}
{{- if hasSuffix "_long" $name -}}
{{- $short := printf "%s_short" (trimSuffix "_long" $name) -}}
{{- $partner := hasKey $thresholds $short | ternary $short "window" -}}
{{- if le $seconds (int (include "vllm-sidecar.seconds" (get $thresholds $partner))) -}}
{{- fail (printf "prometheusRule.thresholds.%s: %v is not longer than %s, %v." $name $value $partner (get $thresholds $partner)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $thresholds -}}
{{- end -}}

{{- /*
Rule groups with the thresholds filled in. The text in rules/ is no template, so that Prometheus's own braces stay; its
%{name} are replaced in JSON, where a value cannot end the string it is in.
*/ -}}
{{- define "vllm-sidecar.rules" -}}
{{- $thresholds := include "vllm-sidecar.thresholds" . | fromYaml -}}
{{- $json := .Files.Get (printf "rules/%s.yaml" .Values.mode) | fromYaml | toRawJson -}}
{{- range $name, $value := omit $thresholds "expected_engines" -}}
{{- $json = replace (printf "%%{%s}" $name) (toString $value | toRawJson | trimPrefix "\"" | trimSuffix "\"") $json -}}
{{- $json = replace (printf "%%{%s_seconds}" $name) (include "vllm-sidecar.seconds" $value) $json -}}
{{- end -}}
{{- $groups := ($json | fromJson).groups -}}
{{- $expected := list -}}
{{- range $thresholds.expected_engines -}}
{{- $labels := dict "namespace" .namespace "model_name" .model_name -}}
{{- $expected = append $expected (dict "record" "model:vllm_sidecar_expected_engines:sum" "expr" (printf "vector(%v)" .engines) "labels" $labels) -}}
{{- end -}}
{{- with $expected -}}
{{- $groups = append $groups (dict "name" "vllm-sidecar-expected.rules" "rules" .) -}}
{{- end -}}
{{- toYaml (concat $groups .Values.prometheusRule.extraGroups) -}}
{{- end -}}
