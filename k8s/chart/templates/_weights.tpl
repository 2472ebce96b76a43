{{/*
How the pods of a pool get their weights, with all defaults: as JSON. Call with (list $ pool).
`shared` says whether the pods have one volume, `sources` what a hub has of the pool's models, `fetched` what a Job
fetches. `own` is what the values say.
*/}}
{{- define "penstock.weights" -}}
{{- $ := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $own := deepCopy (default dict $pool.weights) -}}
{{- $cache := $.Values.ray.modelCache -}}
{{- $base := dict "volume" "" "existingClaim" "" "readOnly" false "accessMode" "" "size" "" "storageClass" "" "oneNode" false -}}
{{- $_ := set $base "image" (dict "reference" "" "pullPolicy" "IfNotPresent") -}}
{{- $_ := set $base "download" (dict "enabled" false "also" list "include" list "exclude" list "parallel" 4 "giveUpAfterSeconds" 21600 "waitSeconds" 86400 "offline" true "resources" dict "pod" dict) -}}
{{- $_ := set $base "objectStore" (dict "existingSecret" "" "endpoint" "" "region" "" "pathStyle" false "caSecret" "" "caKey" "ca.crt") -}}
{{- if not $own.volume -}}
{{- $_ := set $base "volume" (empty $cache.existingClaim | ternary "emptyDir" "existingClaim") -}}
{{- $_ := set $base "existingClaim" (default "" $cache.existingClaim) -}}
{{- $_ := set $base "readOnly" $cache.readOnly -}}
{{- $_ := set $base "size" $cache.sizeLimit -}}
{{- range list "volume" "existingClaim" "readOnly" -}}{{- $_ := unset $own . -}}{{- end -}}
{{- end -}}
{{- $found := mergeOverwrite $base (ternary $own (omit $own "size") (ne (default "" $own.size | toString) "")) -}}
{{- if not $found.size -}}{{- $_ := set $found "size" "100Gi" -}}{{- end -}}
{{- /* A merge passes over what is false. */ -}}
{{- if hasKey (default dict $own.download) "offline" -}}{{- $_ := set $found.download "offline" $own.download.offline -}}{{- end -}}
{{- $_ := set $found "shared" (has $found.volume (list "existingClaim" "newClaim")) -}}
{{- $_ := set $found "sources" (include "penstock.hubSources" $pool | fromJsonArray) -}}
{{- $_ := set $found "fetched" (concat $found.sources $found.download.also | uniq) -}}
{{- $_ := set $found "own" (default dict $pool.weights) -}}
{{- toJson $found -}}
{{- end }}

{{/* Whether a text names a repository of a hub: neither a path nor a URL. */}}
{{- define "penstock.isHub" -}}
{{- if and (ne . "demo") (regexMatch "^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?(@[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*)?$" .) -}}true{{- end -}}
{{- end }}

{{/* What an engine of the pool takes from a hub: names, with their revisions. Call with the pool. */}}
{{- define "penstock.hubSources" -}}
{{- $found := list -}}
{{- $settings := default dict .settings -}}
{{- if ne (default "vllm" $settings.engine) "sim" -}}
{{- $model := default "demo" $settings.model | toString -}}
{{- if include "penstock.isHub" $model -}}
{{- $revision := default "" $settings.revision | toString -}}
{{- $found = append $found (and (ne $revision "") (not (contains "@" $model)) | ternary (printf "%s@%s" $model $revision) $model) -}}
{{- end -}}
{{- $vllm := default dict $settings.vllm -}}
{{- $more := concat (list (default dict $vllm.speculative).model) (default dict $vllm.lora_modules | values) -}}
{{- range $more -}}
{{- if and . (include "penstock.isHub" (toString .)) -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $found) -}}
{{- end }}

{{/* Object stores from which an engine of the pool takes models or adapters: their URLs. Call with the pool. */}}
{{- define "penstock.storedSources" -}}
{{- $found := list -}}
{{- $settings := default dict .settings -}}
{{- if ne (default "vllm" $settings.engine) "sim" -}}
{{- $vllm := default dict $settings.vllm -}}
{{- range concat (list $settings.model (default dict $vllm.speculative).model) (default dict $vllm.lora_modules | values) -}}
{{- if regexMatch "^(?i)(s3|gs|az)://" (default "" . | toString) -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Resource of which a worker gets its GPUs; empty for none. Call with the pool. */}}
{{- define "penstock.accelerator" -}}
{{- if eq .device "gpu" -}}{{- hasKey .workers "accelerator" | ternary .workers.accelerator "nvidia.com/gpu" -}}{{- end -}}
{{- end }}

{{/*
What puts the Job of a download onto the node of the workers, where they share a claim that one node can mount: as a
section for penstock.pod. Call with the pool.
*/}}
{{- define "penstock.besideWorkers" -}}
{{- $found := dict "nodeSelector" dict "tolerations" list "affinity" dict -}}
{{- with include "penstock.accelerator" . -}}
{{- $_ := set $found "tolerations" (list (dict "key" . "operator" "Exists" "effect" "NoSchedule")) -}}
{{- end -}}
{{- range list .workers (default dict .workers.pod) -}}
{{- $_ := set $found "nodeSelector" (mergeOverwrite $found.nodeSelector (deepCopy (default dict .nodeSelector))) -}}
{{- $_ := set $found "tolerations" (concat $found.tolerations (default list .tolerations)) -}}
{{- $_ := set $found "affinity" (mergeOverwrite $found.affinity (deepCopy (default dict .affinity))) -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Name of the claim with a pool's weights. Call with (list $ weights slug). */}}
{{- define "penstock.weightsClaim" -}}
{{- $weights := index . 1 -}}
{{- eq $weights.volume "newClaim" | ternary (printf "%s-weights-%s" (include "penstock.fullname" (index . 0)) (index . 2)) $weights.existingClaim -}}
{{- end }}

{{/* Volumes of a worker pod for models. Call with (list $ weights slug). */}}
{{- define "penstock.weightsVolumes" -}}
{{- $weights := index . 1 -}}
- name: models
  {{- if $weights.shared }}
  persistentVolumeClaim: {claimName: {{ include "penstock.weightsClaim" . | quote }}{{ if $weights.readOnly }}, readOnly: true{{ end }}}
  {{- else if eq $weights.volume "ephemeral" }}
  ephemeral:
    volumeClaimTemplate:
      # KubeRay writes it.
      metadata: {}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $weights.storageClass }}
        storageClassName: {{ eq . "-" | ternary "" . | quote }}
        {{- end }}
        resources: {requests: {storage: {{ include "penstock.quantity" $weights.size | quote }}}}
  {{- else if eq $weights.volume "image" }}
  emptyDir: {sizeLimit: 10Gi}
- name: model-image
  image: {reference: {{ $weights.image.reference | quote }}, pullPolicy: {{ $weights.image.pullPolicy }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $weights.size }}}
  {{- end }}
{{- if $weights.download.enabled }}
# Beside the pod: a name in its template would make every other model a second Ray cluster.
- name: wanted-weights
  configMap:
    name: {{ include "penstock.fullname" (index . 0) }}-weights
    items: [{key: {{ index . 2 | quote }}, path: models}]
{{- end }}
{{- with $weights.objectStore.caSecret }}
- name: object-store-ca
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    items: [{key: {{ $weights.objectStore.caKey | quote }}, path: ca.crt}]
{{- end }}
{{- end }}

{{/* Mounts of a worker's container. Call with weights. */}}
{{- define "penstock.weightsMounts" -}}
- {name: models, mountPath: /models/cache{{ if and .shared .readOnly }}, readOnly: true{{ end }}}
{{- if eq .volume "image" }}
- {name: model-image, mountPath: /models/image, readOnly: true}
{{- end }}
{{- if .objectStore.caSecret }}
- {name: object-store-ca, mountPath: /etc/penstock/object-store, readOnly: true}
{{- end }}
{{- end }}

{{/* Environment of whatever talks with a hub. Call with (list $ weights). */}}
{{- define "penstock.hubEnv" -}}
- {name: HF_HOME, value: /models/cache/hub}
{{- with (index . 0).Values.secrets.huggingFace }}
{{- if .existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{/* Environment of a worker for models. Call with (list $ weights). */}}
{{- define "penstock.weightsEnv" -}}
{{- $weights := index . 1 -}}
{{- include "penstock.hubEnv" . }}
{{- if or $weights.download.enabled (and $weights.shared $weights.readOnly) }}
# Code that comes with models is compiled into here.
- {name: HF_MODULES_CACHE, value: /home/penstock/.cache/hf-modules}
{{- end }}
{{- if and $weights.download.enabled $weights.shared $weights.download.offline }}
# All that is needed is in the cache before a replica starts.
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- with $weights.objectStore }}
{{- if .existingSecret }}
{{- range $variable := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" "AZURE_STORAGE_ACCOUNT_NAME" "AZURE_STORAGE_ACCOUNT_KEY" "AZURE_STORAGE_CONNECTION_STRING" }}
- name: {{ $variable }}
  valueFrom: {secretKeyRef: {name: {{ $weights.objectStore.existingSecret | quote }}, key: {{ $variable }}, optional: true}}
{{- end }}
{{- end }}
{{- with .endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
# Otherwise the library asks a cloud's machine for credentials first.
- {name: AWS_EC2_METADATA_DISABLED, value: "true"}
{{- end }}
{{- with .region }}
- {name: AWS_REGION, value: {{ . | quote }}}
- {name: AWS_DEFAULT_REGION, value: {{ . | quote }}}
{{- end }}
{{- if .pathStyle }}
- {name: RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING, value: "0"}
{{- end }}
{{- if .caSecret }}
- {name: AWS_CA_BUNDLE, value: /etc/penstock/object-store/ca.crt}
{{- end }}
{{- end }}
{{- end }}

{{/* Init containers of a worker: they wait for the weights, or fetch them. Call with (list $ weights pool). */}}
{{- define "penstock.weightsInit" -}}
{{- $ := index . 0 -}}
{{- $weights := index . 1 -}}
{{- $image := default dict (index . 2).image -}}
{{- if $weights.download.enabled }}
initContainers:
  - name: weights
    image: {{ include "penstock.image" (list $ "replica" $image) }}
    imagePullPolicy: {{ default $.Values.images.replica.pullPolicy $image.pullPolicy }}
    command: [penstock, weights, {{ $weights.shared | ternary "wait" "fetch" }}]
    args:
      - --list=/etc/penstock/weights/models
      {{- if not $weights.shared }}
      {{- include "penstock.fetchArguments" $weights | nindent 6 }}
      {{- end }}
    env:
      - {name: HOME, value: /home/penstock}
      {{- include "penstock.hubEnv" . | nindent 6 }}
    {{- if $weights.shared }}
    resources: {requests: {cpu: 100m, memory: 256Mi}, limits: {cpu: "1", memory: 1Gi}}
    {{- else }}
    resources: {{- include "penstock.fetchResources" $weights | nindent 6 }}
    {{- end }}
    securityContext: {{- include "penstock.containerSecurity" $ | nindent 6 }}
    volumeMounts:
      - {name: models, mountPath: /models/cache{{ if and $weights.shared $weights.readOnly }}, readOnly: true{{ end }}}
      - {name: wanted-weights, mountPath: /etc/penstock/weights, readOnly: true}
      - {name: home, mountPath: /home/penstock}
      - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end }}

{{- define "penstock.fetchArguments" -}}
{{- range .download.include }}
- {{ printf "--include=%s" . | quote }}
{{- end }}
{{- range .download.exclude }}
- {{ printf "--exclude=%s" . | quote }}
{{- end }}
- --parallel={{ int .download.parallel }}
- --give-up-after={{ int64 .download.giveUpAfterSeconds }}
{{- end }}

{{- define "penstock.fetchResources" -}}
{{- $default := dict "requests" (dict "cpu" "500m" "memory" "1Gi") "limits" (dict "cpu" "4" "memory" "4Gi") -}}
{{- default $default .download.resources | toYaml -}}
{{- end }}

{{/* How long a cluster may take to come up: its weights come first. Go adds the parts of such a duration. */}}
{{- define "penstock.initializingTimeout" -}}
{{- $longest := 0 -}}
{{- range include "penstock.served" . | fromJson -}}
{{- $download := (include "penstock.weights" (list $ .) | fromJson).download -}}
{{- if $download.enabled -}}{{- $longest = max $longest (int64 $download.waitSeconds) -}}{{- end -}}
{{- end -}}
{{- .Values.ray.initializingTimeout }}{{ if $longest }}{{ $longest }}s{{ end -}}
{{- end }}

{{/* Lets the Jobs that fetch weights reach their sources. */}}
{{- define "penstock.weightsPolicy" -}}
{{- $jobs := false -}}
{{- range include "penstock.served" . | fromJson -}}
{{- $weights := include "penstock.weights" (list $ .) | fromJson -}}
{{- if and $weights.download.enabled $weights.shared -}}{{- $jobs = true -}}{{- end -}}
{{- end -}}
{{- if $jobs }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "penstock.fullname" . }}-weights
  labels: {{- include "penstock.labels" (list . "weights") | nindent 4 }}
spec:
  podSelector: {matchLabels: {{ include "penstock.selector" (list . "weights") | fromYaml | toJson }}}
  policyTypes: [Ingress, Egress]
  egress:
    - to: {{- toYaml .Values.networkPolicy.modelSources | nindent 8 }}
      ports: [{{ range $i, $port := .Values.networkPolicy.modelSourcePorts }}{{ if $i }}, {{ end }}{port: {{ $port }}}{{ end }}]
{{- end }}
{{- end }}
