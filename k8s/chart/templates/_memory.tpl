{{/* A Kubernetes quantity in bytes. */}}
{{- define "penstock.bytes" -}}
{{- if kindIs "string" . -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- if and $unit (not (hasKey $units $unit)) -}}{{- fail (printf "%s: the unit must be one of %s" . (keys $units | sortAlpha | join ", ")) -}}{{- end -}}
{{- mulf (float64 (trimSuffix $unit .)) (get $units $unit | default 1) | int64 -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end }}

{{/*
maxmemory of a trial Redis in bytes; empty without a limit. A full server refuses new data. At the limit of its pod it
would be killed. The rest is for clients' buffers, fragmentation and the copy on write while its file is rewritten.
*/}}
{{- define "penstock.maxMemory" -}}
{{- if .maxMemory -}}
{{- include "penstock.bytes" .maxMemory -}}
{{- else if dig "limits" "memory" "" (default dict .resources) -}}
{{- mulf (include "penstock.bytes" .resources.limits.memory | float64) 0.6 | int64 -}}
{{- end -}}
{{- end }}

{{/*
MiB of unread output that a router keeps per pool, so that all pools together have half of its pod's memory. Empty if
that is at least the settings' own default.
*/}}
{{- define "penstock.roomForUnread" -}}
{{- with dig "limits" "memory" "" (default dict .Values.router.resources) -}}
{{- $each := max 1 (div (include "penstock.bytes" . | int64) (mul 2097152 (include "penstock.served" $ | fromJson | len))) -}}
{{- if lt $each 512 -}}{{- $each -}}{{- end -}}
{{- end -}}
{{- end }}

{{/* MiB of stored jobs in the trial Redis, beside the queue: half of its memory. Empty if that is not known. */}}
{{- define "penstock.roomForJobs" -}}
{{- if .Values.redis.enabled -}}
{{- with include "penstock.maxMemory" .Values.redis -}}{{- max 1 (div (int64 .) 2097152) -}}{{- end -}}
{{- end -}}
{{- end }}
