{{- define "penstock.name" -}}
{{- regexReplaceAll "-+$" (default .Chart.Name .Values.nameOverride | trunc 40) "" -}}
{{- end }}

{{- define "penstock.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- /* A release may have dots in its name, a Service may not. */ -}}
{{- $release := replace "." "-" .Release.Name -}}
{{- if not $name -}}
{{- $own := include "penstock.name" . -}}
{{- $name = contains $own $release | ternary $release (printf "%s-%s" $release $own) -}}
{{- end -}}
{{- regexReplaceAll "-+$" ($name | trunc 40) "" -}}
{{- end }}

{{/* Labels that never change between versions, for selectors. Call with (list $ "component"). */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/*
Labels of an object. Call with (list $ "component"), or (list $ "component" more): further labels, which win over
commonLabels, and both over the chart's own. Those that the chart selects by can't be among them.
*/}}
{{- define "penstock.labels" -}}
{{- $ := index . 0 -}}
{{- $found := dict "app.kubernetes.io/name" (include "penstock.name" $) "app.kubernetes.io/part-of" "penstock" -}}
{{- $_ := set $found "app.kubernetes.io/version" $.Chart.AppVersion -}}
{{- $_ := set $found "app.kubernetes.io/managed-by" $.Release.Service -}}
{{- $_ := set $found "helm.sh/chart" (printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_") -}}
{{- $more := gt (len .) 2 | ternary (last .) dict -}}
{{- $selector := include "penstock.selector" . | fromYaml -}}
{{- mergeOverwrite $found (deepCopy (default dict $.Values.commonLabels)) (deepCopy (default dict $more)) $selector | toYaml -}}
{{- end }}

{{/* Labels of a pod. The chart's version is not in them, so that a new chart alone restarts no pods. */}}
{{- define "penstock.podLabels" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/part-of: penstock
{{ include "penstock.selector" . }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
An image. Call with (list $ "router"), or (list $ "replica" own): what a pool says over it. The digest of another
repository or tag is not its digest.
*/}}
{{- define "penstock.image" -}}
{{- $ := index . 0 -}}
{{- $name := index . 1 -}}
{{- $image := index $.Values.images $name -}}
{{- $own := gt (len .) 2 | ternary (last .) dict | default dict -}}
{{- $other := or $own.repository $own.tag $own.digest -}}
{{- $repository := default $image.repository $own.repository -}}
{{- with ($.Values.global).imageRegistry -}}
{{- /* A first part with a dot, a port, or localhost is a registry. */ -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $repository "") -}}
{{- end -}}
{{- $tagged := printf "%s:%s" $repository (default (default $.Chart.AppVersion $image.tag) $own.tag) -}}
{{- $digest := default (get $.Values.images.digests $tagged) (empty $other | ternary $image.digest $own.digest) -}}
{{- if and $.Values.images.requireDigest (not $digest) -}}
{{- fail (printf "%s must be set, because images.requireDigest is on: %s has none" (empty $other | ternary (printf "images.%s.digest" $name) "image.digest of the pool") $tagged) -}}
{{- end -}}
{{- ternary (printf "%s@%s" $repository $digest) $tagged (ne (default "" $digest) "") | quote -}}
{{- end }}

{{/* Pools that are served: those that are not retired. As JSON. */}}
{{- define "penstock.served" -}}
{{- $found := dict -}}
{{- range $pool, $spec := .Values.pools -}}{{- if not $spec.retired -}}{{- $_ := set $found $pool $spec -}}{{- end -}}{{- end -}}
{{- if not $found -}}{{- fail "pools must have one that is not retired" -}}{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Names of all pools in the order of their worker groups. As JSON. */}}
{{- define "penstock.groups" -}}
{{- $keys := list -}}
{{- range $pool, $spec := .Values.pools -}}
{{- $keys = append $keys (printf "%06d %s" (int $spec.workers.order) $pool) -}}
{{- end -}}
{{- $found := list -}}
{{- range sortAlpha $keys -}}{{- $found = append $found (regexReplaceAll "^[0-9]+ " . "") -}}{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Pull secrets of the chart and of `global`, as names or as objects with a name. */}}
{{- define "penstock.pullSecrets" -}}
{{- $names := list -}}
{{- range concat (($.Values.global).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
{{- $names = append $names (dict "name" (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .)) -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end }}

{{/* A pool's name as a part of the names of objects. */}}
{{- define "penstock.poolSlug" -}}
{{- regexReplaceAll "-+$" (lower . | replace "." "-" | replace "_" "-" | trunc 40) "" -}}
{{- end }}

{{/* The logical resource that ties a pool's replicas to its worker group, one per pod. */}}
{{- define "penstock.poolResource" -}}
penstock-{{ include "penstock.poolSlug" . }}
{{- end }}

{{- define "penstock.secretName" -}}
{{- $ := index . 0 -}}
{{- default (printf "%s-%s" (include "penstock.fullname" $) (index . 2)) (index . 1) -}}
{{- end }}
{{- define "penstock.clusterSecret" -}}{{ include "penstock.secretName" (list $ .Values.secrets.cluster.existingSecret "cluster") }}{{- end }}
{{- define "penstock.raySecret" -}}{{ include "penstock.secretName" (list $ .Values.secrets.rayToken.existingSecret "ray-token") }}{{- end }}
{{- define "penstock.keysSecret" -}}{{ include "penstock.secretName" (list $ .Values.auth.existingSecret "keys") }}{{- end }}
{{- define "penstock.redisSecret" -}}{{ include "penstock.secretName" (list $ .Values.redis.existingSecret "redis") }}{{- end }}
{{- define "penstock.gcsRedisSecret" -}}{{ include "penstock.secretName" (list $ .Values.gcsRedis.existingSecret "redis-gcs") }}{{- end }}
{{- define "penstock.routerTlsSecret" -}}{{ include "penstock.secretName" (list $ .Values.router.tls.existingSecret "router-tls") }}{{- end }}
{{- define "penstock.consoleTlsSecret" -}}{{ include "penstock.secretName" (list $ .Values.console.tls.existingSecret "console-tls") }}{{- end }}
{{- define "penstock.linkTlsSecret" -}}{{ include "penstock.secretName" (list $ .Values.replica.tls.existingSecret "link-tls") }}{{- end }}

{{/* Whether routers ask the pod of `helm test` for a certificate. */}}
{{- define "penstock.testShowsCertificate" -}}
{{- if and .Values.router.tls.enabled .Values.router.tls.clientCertificates -}}true{{- end -}}
{{- end }}

{{/* Whether `helm test` has the key and the certificate that routers ask for, if they do. */}}
{{- define "penstock.hasTest" -}}
{{- $firstKey := and .Values.secrets.generate (not .Values.auth.existingSecret) -}}
{{- $key := or .Values.auth.anonymous $firstKey .Values.test.existingSecret -}}
{{- $certificate := or (not (include "penstock.testShowsCertificate" .)) .Values.test.clientCertificateSecret -}}
{{- if and .Values.test.enabled $key $certificate -}}true{{- end -}}
{{- end }}
