{{/* Fields that the restricted pod security standard requires of a pod. Call with the user's id. */}}
{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/*
Security context of Ray's autoscaler: the chart's, with what `pods`, the head's `pod` and its own value say. Empty where
the last of them that speaks says null.
*/}}
{{- define "penstock.sidecarSecurity" -}}
{{- $found := include "penstock.containerSecurity" . | fromYaml -}}
{{- range $more := list .Values.pods (default dict .Values.ray.head.pod) .Values.ray.autoscaler -}}
{{- $own := get $more "containerSecurityContext" -}}
{{- if $own -}}
{{- $found = mergeOverwrite $found (deepCopy $own) -}}
{{- else if not (kindIs "map" $own) -}}
{{- /* Helm takes away a key that is null; only a `pod` need not have it. */ -}}
{{- if or (hasKey $more "containerSecurityContext") (ne (toString $more) (toString (default dict $.Values.ray.head.pod))) -}}{{- $found = dict -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $found -}}{{- toYaml $found -}}{{- end -}}
{{- end }}

{{/* Seconds from deletion to SIGKILL: the drain, the steps after it, and 15 s for the rest. */}}
{{- define "penstock.routerGrace" -}}
{{- add .Values.router.preStopSeconds .Values.router.drainSeconds 15 -}}
{{- end }}
{{/* Seconds that Serve gives a replica: its drain, and the time for its engine to end. */}}
{{- define "penstock.serveGrace" -}}
{{- add .Values.replica.drainSeconds 20 -}}
{{- end }}
{{/* Seconds for which Ray lets a stopped node finish its work. Its own 30 s would cut streams before Serve's grace ends. */}}
{{- define "penstock.rayGrace" -}}
{{- add (include "penstock.serveGrace" .) 10 -}}
{{- end }}
{{- define "penstock.workerGrace" -}}
{{- add (include "penstock.serveGrace" .) 40 -}}
{{- end }}

{{/* Address of the queue: environment of every process that uses it. */}}
{{- define "penstock.redisEnv" -}}
{{- $redis := .Values.externalRedis -}}
{{- if eq .Values.redis.enabled $redis.enabled -}}
{{- fail "exactly one of redis.enabled and externalRedis.enabled must be true" -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
- name: QUEUE_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "penstock.redisSecret" . | quote }}, key: {{ .Values.redis.key | quote }}}}
- name: PENSTOCK_REDIS__URL
  value: redis://:$(QUEUE_REDIS_PASSWORD)@{{ include "penstock.fullname" . }}-redis:6379/0
{{- else if and (eq $redis.mode "url") (not $redis.url) -}}
- name: PENSTOCK_REDIS__URL
  valueFrom: {secretKeyRef: {name: {{ required "externalRedis.existingSecret must be set, or externalRedis.url" $redis.existingSecret | quote }}, key: {{ $redis.urlKey | quote }}}}
{{- else -}}
{{- $secret := $redis.existingSecret -}}
{{- $login := "" -}}
{{- if and $secret $redis.usernameKey }}
- name: QUEUE_REDIS_USERNAME
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $redis.usernameKey | quote }}}}
{{- $login = "$(QUEUE_REDIS_USERNAME)" }}
{{- end }}
{{- if and $secret $redis.passwordKey }}
- name: QUEUE_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $redis.passwordKey | quote }}}}
{{- $login = printf "%s:$(QUEUE_REDIS_PASSWORD)" $login }}
{{- end }}
{{- $login = ternary (printf "%s@" $login) "" (ne $login "") }}
{{- $ca := ternary "ssl_ca_certs=/etc/penstock/redis-ca/ca.crt" "" (not (empty $redis.tls.caSecret)) }}
{{- if and $ca (ne $redis.mode "url") (not $redis.tls.enabled) }}
{{- fail (printf "externalRedis.tls.enabled must be true where externalRedis.tls.caSecret is set and externalRedis.mode is %s: without it nothing is encrypted" $redis.mode) }}
{{- end }}
{{- if eq $redis.mode "sentinel" }}
{{- if not $redis.sentinel.hosts }}
{{- fail "externalRedis.sentinel.hosts must name sentinels as host:port" }}
{{- end }}
{{- $options := "" }}
{{- if and $secret $redis.sentinelPasswordKey }}
- name: QUEUE_SENTINEL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $redis.sentinelPasswordKey | quote }}}}
{{- $options = "?sentinel_password=$(QUEUE_SENTINEL_PASSWORD)" }}
{{- end }}
{{- if $ca }}
# Sentinel addresses have no option for it.
- name: SSL_CERT_FILE
  value: /etc/penstock/redis-ca/ca.crt
{{- end }}
- name: PENSTOCK_REDIS__URL
  value: {{ printf "%s://%s%s/%s/%v%s" (ternary "rediss+sentinel" "redis+sentinel" $redis.tls.enabled) $login (join "," $redis.sentinel.hosts) $redis.sentinel.service $redis.sentinel.database $options | quote }}
{{- else }}
{{- $url := default "" $redis.url }}
{{- if and (eq $redis.mode "url") (hasPrefix "redis://" $url) (or $redis.tls.enabled $redis.tls.caSecret) }}
{{- fail (printf "externalRedis.url must begin with rediss:// where externalRedis.tls is set, got %s: without the second s nothing is encrypted" $url) }}
{{- end }}
{{- if eq $redis.mode "cluster" }}
{{- if not $redis.cluster.hosts }}
{{- fail "externalRedis.cluster.hosts must name servers of the cluster as host:port" }}
{{- end }}
{{- $url = printf "%s://%s" (ternary "rediss+cluster" "redis+cluster" $redis.tls.enabled) (join "," $redis.cluster.hosts) }}
{{- end }}
- name: PENSTOCK_REDIS__URL
  value: {{ printf "%s%s" ($url | replace "://" (printf "://%s" $login)) (ternary (printf "%s%s" (ternary "&" "?" (contains "?" $url)) $ca) "" (ne $ca "")) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Files of every process: the cluster secret, the links' certificate, Redis' authority. */}}
{{- define "penstock.commonVolumes" -}}
- name: cluster-secret
  secret:
    secretName: {{ include "penstock.clusterSecret" . | quote }}
    defaultMode: 0440
    items: [{key: {{ .Values.secrets.cluster.key | quote }}, path: cluster-secret}]
{{- if .Values.replica.tls.enabled }}
- name: link-tls
  secret: {secretName: {{ include "penstock.linkTlsSecret" . | quote }}, defaultMode: 0440}
{{- end }}
{{- if and .Values.externalRedis.enabled .Values.externalRedis.tls.caSecret }}
- name: redis-ca
  secret:
    secretName: {{ .Values.externalRedis.tls.caSecret | quote }}
    defaultMode: 0440
    items: [{key: {{ .Values.externalRedis.tls.caKey | quote }}, path: ca.crt}]
{{- end }}
{{- end }}
{{- define "penstock.commonMounts" -}}
- {name: cluster-secret, mountPath: /etc/penstock/secret, readOnly: true}
{{- if .Values.replica.tls.enabled }}
- {name: link-tls, mountPath: /etc/penstock/link-tls, readOnly: true}
{{- end }}
{{- if and .Values.externalRedis.enabled .Values.externalRedis.tls.caSecret }}
- {name: redis-ca, mountPath: /etc/penstock/redis-ca, readOnly: true}
{{- end }}
{{- end }}

{{/* Spread over nodes and zones. Call with (list $ "component" whenUnsatisfiable). */}}
{{- define "penstock.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: {{ index . 2 }}
  # Nodes with taints that the pods don't tolerate are no places to spread over.
  nodeTaintsPolicy: Honor
  labelSelector: {matchLabels: {{ include "penstock.selector" . | fromYaml | toJson }}}
  matchLabelKeys: [pod-template-hash]
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  nodeTaintsPolicy: Honor
  labelSelector: {matchLabels: {{ include "penstock.selector" . | fromYaml | toJson }}}
  matchLabelKeys: [pod-template-hash]
{{- end }}
