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

{{/* Seconds from deletion to SIGKILL: the drain, the steps after it, and 15 s for the rest. */}}
{{- define "penstock.routerGrace" -}}
{{- add .Values.router.preStopSeconds .Values.router.drainSeconds 15 -}}
{{- end }}
{{/* Seconds that Serve gives a replica: its drain, and the time for its engine to end. */}}
{{- define "penstock.serveGrace" -}}
{{- add .Values.replica.drainSeconds 20 -}}
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
  valueFrom: {secretKeyRef: {name: {{ include "penstock.redisSecret" . }}, key: {{ .Values.redis.key }}}}
- name: PENSTOCK_REDIS__URL
  value: redis://:$(QUEUE_REDIS_PASSWORD)@{{ include "penstock.fullname" . }}-redis:6379/0
{{- else if and (eq $redis.mode "url") (not $redis.url) -}}
- name: PENSTOCK_REDIS__URL
  valueFrom: {secretKeyRef: {name: {{ required "externalRedis.existingSecret must be set, or externalRedis.url" $redis.existingSecret }}, key: {{ $redis.urlKey }}}}
{{- else -}}
{{- $secret := $redis.existingSecret -}}
{{- $login := "" -}}
{{- if and $secret $redis.usernameKey }}
- name: QUEUE_REDIS_USERNAME
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $redis.usernameKey }}}}
{{- $login = "$(QUEUE_REDIS_USERNAME)" }}
{{- end }}
{{- if and $secret $redis.passwordKey }}
- name: QUEUE_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $redis.passwordKey }}}}
{{- $login = printf "%s:$(QUEUE_REDIS_PASSWORD)" $login }}
{{- end }}
{{- $login = ternary (printf "%s@" $login) "" (ne $login "") }}
{{- $ca := ternary "ssl_ca_certs=/etc/penstock/redis-ca/ca.crt" "" (ne $redis.tls.caSecret "") }}
{{- if eq $redis.mode "sentinel" }}
{{- if not $redis.sentinel.hosts }}
{{- fail "externalRedis.sentinel.hosts must name sentinels as host:port" }}
{{- end }}
{{- $options := "" }}
{{- if and $secret $redis.sentinelPasswordKey }}
- name: QUEUE_SENTINEL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $redis.sentinelPasswordKey }}}}
{{- $options = "?sentinel_password=$(QUEUE_SENTINEL_PASSWORD)" }}
{{- end }}
{{- if $ca }}
# Sentinel addresses have no option for it.
- name: SSL_CERT_FILE
  value: /etc/penstock/redis-ca/ca.crt
{{- end }}
- name: PENSTOCK_REDIS__URL
  value: {{ printf "%s://%s%s/%s/%v%s" (ternary "rediss+sentinel" "redis+sentinel" $redis.tls.enabled) $login (join "," $redis.sentinel.hosts) $redis.sentinel.service $redis.sentinel.database $options }}
{{- else }}
{{- $url := $redis.url }}
{{- if eq $redis.mode "cluster" }}
{{- if not $redis.cluster.hosts }}
{{- fail "externalRedis.cluster.hosts must name servers of the cluster as host:port" }}
{{- end }}
{{- $url = printf "%s://%s" (ternary "rediss+cluster" "redis+cluster" $redis.tls.enabled) (join "," $redis.cluster.hosts) }}
{{- end }}
- name: PENSTOCK_REDIS__URL
  value: {{ printf "%s%s" ($url | replace "://" (printf "://%s" $login)) (ternary (printf "%s%s" (ternary "&" "?" (contains "?" $url)) $ca) "" (ne $ca "")) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Files of every process: the cluster secret, the links' certificate, Redis' authority. */}}
{{- define "penstock.commonVolumes" -}}
- name: cluster-secret
  secret:
    secretName: {{ include "penstock.clusterSecret" . }}
    defaultMode: 0440
    items: [{key: {{ .Values.secrets.cluster.key }}, path: cluster-secret}]
{{- if .Values.replica.tls.enabled }}
- name: link-tls
  secret: {secretName: {{ include "penstock.linkTlsSecret" . }}, defaultMode: 0440}
{{- end }}
{{- if and .Values.externalRedis.enabled .Values.externalRedis.tls.caSecret }}
- name: redis-ca
  secret:
    secretName: {{ .Values.externalRedis.tls.caSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.externalRedis.tls.caKey }}, path: ca.crt}]
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
  labelSelector: {matchLabels: {{ include "penstock.selector" . | fromYaml | toJson }}}
  matchLabelKeys: [pod-template-hash]
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {{ include "penstock.selector" . | fromYaml | toJson }}}
  matchLabelKeys: [pod-template-hash]
{{- end }}
