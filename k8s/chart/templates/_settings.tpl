{{/* Take what is null out of a tree, in place: a setting that is null has its default. */}}
{{- define "penstock.withoutNulls" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $ $key -}}
{{- else if kindIs "map" $value -}}{{- include "penstock.withoutNulls" $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Write whole numbers of a tree as such, in place. Numbers of values are fractions to Helm, and TOML tells the two apart:
routers would read 2.0 where replicas read 2, and take the pool's settings for others.
*/}}
{{- define "penstock.wholeNumbers" -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}{{- include "penstock.wholeNumbers" $value -}}
{{- else if kindIs "slice" $value -}}
{{- $items := list -}}
{{- range $value -}}
{{- $item := dict "it" . -}}
{{- include "penstock.wholeNumbers" $item -}}
{{- $items = append $items $item.it -}}
{{- end -}}
{{- $_ := set $ $key $items -}}
{{- else if and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value) -}}{{- $_ := set $ $key (int64 $value) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A pool's settings, with the defaults that the chart itself needs. */}}
{{- define "penstock.poolSettings" -}}
{{- $settings := deepCopy .settings -}}
{{- include "penstock.withoutNulls" $settings -}}
{{- $_ := set $settings "replicas" (int (default 1 $settings.replicas)) -}}
{{- $_ := set $settings "tensor_parallel_size" (int (default 1 $settings.tensor_parallel_size)) -}}
{{- $_ := set $settings "pipeline_parallel_size" (int (default 1 $settings.pipeline_parallel_size)) -}}
{{- $_ := set $settings "engine" (default "vllm" $settings.engine) -}}
{{- range $section := list "control" "autoscale" -}}
{{- /* YAML reads `off` as false. */ -}}
{{- with index $settings $section -}}
{{- if and (hasKey . "mode") (kindIs "bool" .mode) (not .mode) -}}{{- $_ := set . "mode" "off" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* The settings that replicas and routers share. Settings of the chart replace those of the user. */}}
{{- define "penstock.sharedSettings" -}}
{{- $tree := dict -}}
{{- range $section := list "cluster" "queue" "replica" "redis" "telemetry" "registry" -}}
{{- with index (default dict $.Values.settings) $section -}}{{- $_ := set $tree $section (deepCopy .) -}}{{- end -}}
{{- end -}}
{{- $replica := dict "drain_s" (int .Values.replica.drainSeconds) "port" (int .Values.replica.port) "metrics_port" (int .Values.replica.metricsPort) -}}
{{- if .Values.replica.tls.enabled -}}
{{- $_ := set $replica "tls" (dict "certificate_file" "/etc/penstock/link-tls/tls.crt" "private_key_file" "/etc/penstock/link-tls/tls.key" "ca_file" "/etc/penstock/link-tls/ca.crt") -}}
{{- end -}}
{{- $pools := dict -}}
{{- range $name, $pool := include "penstock.served" . | fromJson -}}
{{- $_ := set $pools $name (include "penstock.poolSettings" $pool | fromYaml) -}}
{{- end -}}
{{- $cluster := dict "secret_file" "/etc/penstock/secret/cluster-secret" "log_format" "json" -}}
{{- include "penstock.withoutNulls" $tree -}}
{{- mergeOverwrite $tree (dict "cluster" $cluster "replica" $replica "pools" $pools) | toYaml -}}
{{- end }}

{{/* The whole tree, for routers and the autoscaler. */}}
{{- define "penstock.settings" -}}
{{- $router := dict "host" "::" "port" 50051 "metrics_port" 9090 "processes" 1 "drain_s" (int .Values.router.drainSeconds) -}}
{{- if .Values.router.http.enabled -}}{{- $_ := set $router "http" (dict "port" (int .Values.router.http.port)) -}}{{- end -}}
{{- if .Values.router.tls.enabled -}}
{{- $tls := dict "certificate_file" "/etc/penstock/tls/tls.crt" "private_key_file" "/etc/penstock/tls/tls.key" -}}
{{- if .Values.router.tls.clientCertificates -}}{{- $_ := set $tls "client_ca_file" "/etc/penstock/tls/ca.crt" -}}{{- end -}}
{{- $_ := set $router "tls" $tls -}}
{{- end -}}
{{- with include "penstock.roomForUnread" . -}}
{{- if not (hasKey (default dict $.Values.settings.router) "max_unread_total_mb") -}}{{- $_ := set $router "max_unread_total_mb" (int64 .) -}}{{- end -}}
{{- end -}}
{{- $auth := dict -}}
{{- if .Values.auth.anonymous -}}
{{- $_ := set $auth "anonymous" true -}}
{{- else -}}
{{- $_ := set $auth "keys_file" "/etc/penstock/keys/keys.toml" -}}
{{- end -}}
{{- $issuers := default dict .Values.auth.jwt | deepCopy -}}
{{- with .Values.auth.serviceAccounts -}}
{{- if .enabled -}}
{{- $own := default dict .settings | deepCopy -}}
{{- if not (or $own.tenant $own.tenant_claim) -}}{{- $_ := set $own "tenant_claim" "/kubernetes.io/namespace" -}}{{- end -}}
{{- $_ := set $issuers "kubernetes" (mergeOverwrite $own (dict "issuer" .issuer "audiences" (list .audience) "jwks_url" "https://kubernetes.default.svc/openid/v1/jwks" "ca_file" "/etc/penstock/service-account/ca.crt" "token_file" "/etc/penstock/service-account/token")) -}}
{{- end -}}
{{- end -}}
{{- if $issuers -}}{{- $_ := set $auth "jwt" $issuers -}}{{- end -}}
{{- $settings := default dict .Values.settings | deepCopy -}}
{{- include "penstock.withoutNulls" $settings -}}
{{- $tree := mergeOverwrite $settings (include "penstock.sharedSettings" . | fromYaml) (dict "router" $router "auth" $auth "cluster" (dict "state_dir" "/var/lib/penstock")) -}}
{{- with include "penstock.roomForJobs" . -}}
{{- $_ := set $tree "jobs" (mergeOverwrite (dict "max_mb" (int64 .)) (default dict $tree.jobs)) -}}
{{- end -}}
{{- if .Values.autoscaler.enabled -}}
{{- $_ := set $tree "cluster" (mergeOverwrite $tree.cluster (dict "ray_address" (printf "http://%s-head-svc:8265" (include "penstock.fullname" .)))) -}}
{{- $own := dict "host" "::" "port" (int .Values.autoscaler.metricsPort) "token_file" "/etc/penstock/ray-token/auth_token" -}}
{{- $_ := set $tree "autoscaler" (mergeOverwrite (default dict .Values.autoscaler.settings | deepCopy) $own) -}}
{{- end -}}
{{- include "penstock.withoutNulls" $tree -}}
{{- include "penstock.wholeNumbers" $tree -}}
{{- toToml $tree -}}
{{- end }}

{{/* Ray Serve's config. It carries the replicas' settings, so that a change of them replaces replicas in place. */}}
{{- define "penstock.serveConfig" -}}
{{- $tree := include "penstock.sharedSettings" . | fromYaml -}}
{{- $apps := list -}}
{{- range $name, $pool := include "penstock.served" . | fromJson -}}
{{- $settings := include "penstock.poolSettings" $pool | fromYaml -}}
{{- $tp := int $settings.tensor_parallel_size -}}
{{- $pp := int $settings.pipeline_parallel_size -}}
{{- $resource := include "penstock.poolResource" $name -}}
{{- $actor := dict "num_cpus" 1 "resources" (dict $resource 1) -}}
{{- $deployment := dict "name" "replica" "num_replicas" (int $settings.replicas) "rolling_update_percentage" 0.0009 "graceful_shutdown_wait_loop_s" 0.1 "graceful_shutdown_timeout_s" (include "penstock.serveGrace" $ | int) "health_check_period_s" 2 "health_check_timeout_s" 30 "max_ongoing_requests" 1000000 -}}
{{- if ne $settings.engine "sim" -}}
{{- if gt $pp 1 -}}
{{- $bundles := list -}}
{{- range until (int (mul $tp $pp)) -}}
{{- $bundles = append $bundles (dict "CPU" 1 "GPU" 1) -}}
{{- end -}}
{{- $actor = dict "num_cpus" 1 -}}
{{- $_ := set $deployment "placement_group_bundles" $bundles -}}
{{- $_ := set $deployment "placement_group_strategy" "PACK" -}}
{{- $selectors := list -}}
{{- range $bundles -}}{{- $selectors = append $selectors (dict "penstock.io/pool" (include "penstock.poolSlug" $name)) -}}{{- end -}}
{{- $_ := set $deployment "placement_group_bundle_label_selector" $selectors -}}
{{- else if eq $pool.device "gpu" -}}
{{- $_ := set $actor "num_gpus" $tp -}}
{{- else -}}
{{- $_ := set $actor "num_cpus" (add1 $tp) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $deployment "ray_actor_options" $actor -}}
{{- $own := omit $settings "replicas" "autoscale" "budget_per_hour" -}}
{{- /* Each cell needs a replica. With the number of the values itself, another one would replace all replicas. */ -}}
{{- with $own.cells -}}{{- $_ := set $own "replicas" (int .) -}}{{- end -}}
{{- /* An engine that is to sleep is made for it. How many may do so changes without another start. */ -}}
{{- if (default dict $settings.autoscale).standby -}}{{- $_ := set $own "autoscale" (dict "standby" 1) -}}{{- end -}}
{{- $args := dict "pool" $name "settings" (merge (dict "pools" (dict $name $own)) (omit $tree "pools")) -}}
{{- $apps = append $apps (dict "name" (printf "penstock-%s" $name) "route_prefix" nil "import_path" "deployments.app:build" "args" $args "external_scaler_enabled" true "deployments" (list $deployment)) -}}
{{- end -}}
{{- dict "proxy_location" "EveryNode" "http_options" (dict "host" .Values.ray.dashboardHost "port" 8000) "applications" $apps | toYaml -}}
{{- end }}
