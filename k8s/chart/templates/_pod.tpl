{{/*
A pod's template with the fields that every pod gets (values `pods`), then those of its component: its older fields
(nodeSelector, env, ...) and its `pod`. Later ones win.
Call with (list $ section text): the section of the values that has `pod`, and the chart's own template.
*/}}
{{- define "penstock.pod" -}}
{{- $ := index . 0 -}}
{{- $section := default dict (index . 1) -}}
{{- $template := index . 2 | fromYaml -}}
{{- with $template.Error -}}{{- fail . -}}{{- end -}}
{{- $spec := $template.spec -}}
{{- $main := first $spec.containers -}}
{{- with include "penstock.pullSecrets" $ | fromJsonArray -}}{{- $_ := set $spec "imagePullSecrets" . -}}{{- end -}}
{{- if not $.Values.pods.fixedUser -}}
{{- range list "runAsUser" "runAsGroup" "fsGroup" -}}{{- $_ := unset $spec.securityContext . -}}{{- end -}}
{{- end -}}
{{- $all := $.Values.pods -}}
{{- $labels := $template.metadata.labels -}}
{{- /* A container beside what must end would run on, and its pod never end. */ -}}
{{- if has (get $labels "app.kubernetes.io/component") (list "test" "weights") -}}{{- $all = omit $all "containers" -}}{{- end -}}
{{- $older := pick $section "nodeSelector" "tolerations" "affinity" "priorityClassName" "env" -}}
{{- with $section.podAnnotations -}}{{- $_ := set $older "annotations" . -}}{{- end -}}
{{- $pod := default dict $section.pod -}}
{{- $merged := deepCopy $labels -}}
{{- range $more := list $all $older $pod -}}
{{- with $more.labels -}}{{- $merged = mergeOverwrite $merged (deepCopy .) -}}{{- end -}}
{{- with $more.annotations -}}
{{- $_ := set $template.metadata "annotations" (mergeOverwrite (default dict $template.metadata.annotations) (deepCopy .)) -}}
{{- end -}}
{{- range $field := list "nodeSelector" "affinity" "dnsConfig" -}}
{{- with get $more $field -}}{{- $_ := set $spec $field (mergeOverwrite (default dict (get $spec $field)) (deepCopy .)) -}}{{- end -}}
{{- end -}}
{{- range $field := list "tolerations" "topologySpreadConstraints" "hostAliases" "resourceClaims" "initContainers" "containers" -}}
{{- with get $more $field -}}{{- $_ := set $spec $field (concat (default list (get $spec $field)) (deepCopy .)) -}}{{- end -}}
{{- end -}}
{{- /* Helm takes a key away that is null in the values. */ -}}
{{- range $field, $owner := dict "securityContext" $spec "containerSecurityContext" $main -}}
{{- $own := get $more $field -}}
{{- if $own -}}
{{- $_ := set $owner "securityContext" (mergeOverwrite (default dict $owner.securityContext) (deepCopy $own)) -}}
{{- else if not (kindIs "map" $own) -}}
{{- if or (hasKey $more $field) (eq (toString $more) (toString $all)) -}}{{- $_ := unset $owner "securityContext" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $spec "volumes" (include "penstock.replaced" (list "name" $spec.volumes $more.volumes) | fromJsonArray) -}}
{{- $_ := set $main "volumeMounts" (include "penstock.replaced" (list "mountPath" $main.volumeMounts $more.volumeMounts) | fromJsonArray) -}}
{{- $_ := set $main "env" (include "penstock.replaced" (list "name" $main.env $more.env) | fromJsonArray) -}}
{{- $_ := set $main "envFrom" (concat (default list $main.envFrom) (default list $more.envFrom)) -}}
{{- /* It needs the proxies, authorities and mirrors that the main container would need. */ -}}
{{- range $start := $spec.initContainers -}}
{{- if eq $start.name "weights" -}}
{{- $_ := set $start "volumeMounts" (include "penstock.replaced" (list "mountPath" $start.volumeMounts $more.volumeMounts) | fromJsonArray) -}}
{{- $_ := set $start "env" (include "penstock.replaced" (list "name" $start.env $more.env) | fromJsonArray) -}}
{{- with $more.envFrom -}}{{- $_ := set $start "envFrom" (concat (default list $start.envFrom) .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Of a component's `pod`, "" and false take back what `pods` says. */ -}}
{{- range $field := list "dnsPolicy" "serviceAccountName" "runtimeClassName" "schedulerName" "priorityClassName" "hostNetwork" -}}
{{- $value := hasKey $pod $field | ternary (get $pod $field) (default (get $all $field) (get $older $field)) -}}
{{- if $value -}}{{- $_ := set $spec $field $value -}}{{- end -}}
{{- end -}}
{{- if $spec.hostNetwork -}}
{{- if $.Values.networkPolicy.enabled -}}
{{- fail (printf "hostNetwork of %s needs networkPolicy.enabled false: policies select pods, and traffic of a pod in its node's network comes from the node, so they would cut it off" (get $labels "app.kubernetes.io/component")) -}}
{{- end -}}
{{- if not $spec.dnsPolicy -}}{{- $_ := set $spec "dnsPolicy" "ClusterFirstWithHostNet" -}}{{- end -}}
{{- end -}}
{{- /* Those that the chart selects by stay its own. */ -}}
{{- range $name, $value := $labels -}}
{{- if not (hasKey (default dict $.Values.commonLabels) $name) -}}{{- $_ := set $merged $name $value -}}{{- end -}}
{{- end -}}
{{- $_ := set $template.metadata "labels" $merged -}}
{{- /* An operator that reads this and writes it back must change nothing. See penstock.quantity. */ -}}
{{- range concat (default list $spec.initContainers) $spec.containers -}}
{{- $_ := set . "resources" (include "penstock.resources" .resources | fromJson) -}}
{{- range .env -}}{{- if eq (toString (get . "value")) "" -}}{{- $_ := unset . "value" -}}{{- end -}}{{- end -}}
{{- range .volumeMounts -}}{{- if not .readOnly -}}{{- $_ := unset . "readOnly" -}}{{- end -}}{{- end -}}
{{- range $field := list "env" "envFrom" "volumeMounts" -}}{{- if not (get $main $field) -}}{{- $_ := unset $main $field -}}{{- end -}}{{- end -}}
{{- end -}}
{{- range $spec.volumes -}}
{{- with .emptyDir -}}{{- if .sizeLimit -}}{{- $_ := set . "sizeLimit" (include "penstock.quantity" .sizeLimit) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if not $spec.volumes -}}{{- $_ := unset $spec "volumes" -}}{{- end -}}
{{- toYaml $template -}}
{{- end }}

{{/*
Two lists as one. A later item with the same key takes the place of an earlier one, because $(NAME) in a variable sees
only those before it. Call with (list key first second).
*/}}
{{- define "penstock.replaced" -}}
{{- $key := index . 0 -}}
{{- $items := concat (default list (index . 1)) (default list (index . 2)) -}}
{{- $last := dict -}}
{{- range $items -}}{{- $_ := set $last (get . $key) . -}}{{- end -}}
{{- $found := list -}}
{{- $seen := dict -}}
{{- range $items -}}
{{- $name := get . $key -}}
{{- if not (hasKey $seen $name) -}}{{- $found = append $found (get $last $name) -}}{{- $_ := set $seen $name true -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Resources of a container, without empty parts, and with quantities as Kubernetes writes them. */}}
{{- define "penstock.resources" -}}
{{- $found := dict -}}
{{- range $part, $content := default dict . -}}
{{- if and $content (has $part (list "requests" "limits")) -}}
{{- $quantities := dict -}}
{{- range $name, $value := $content -}}{{- $_ := set $quantities $name (include "penstock.quantity" $value) -}}{{- end -}}
{{- $_ := set $found $part $quantities -}}
{{- else if $content -}}
{{- $_ := set $found $part $content -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/*
A quantity in the form in which Kubernetes writes it: "0.5" is 500m and "1024Mi" is 1Gi. KubeRay writes the whole
RayService back. A quantity in another form would then change its owner, and the next upgrade conflict.
*/}}
{{- define "penstock.quantity" -}}
{{- $text := toString . -}}
{{- /* Numbers of YAML are fractions to Helm, and large whole ones would be written with an exponent. */ -}}
{{- if not (kindIs "string" .) -}}{{- $text = eq (float64 (int64 .)) (float64 .) | ternary (int64 . | toString) (printf "%v" .) -}}{{- end -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $number := trimSuffix $unit $text -}}
{{- $binary := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $decimal := dict "m" 1 "" 1000 "k" 1000000 "M" 1000000000 "G" 1000000000000 "T" 1000000000000000 -}}
{{- $known := or (hasKey $binary $unit) (hasKey $decimal $unit) -}}
{{- if not (and $known (regexMatch "^[0-9]+(\\.[0-9]+)?$" $number)) -}}
{{- $text -}}
{{- else -}}
{{- $step := ternary 1024 1000 (hasKey $binary $unit) -}}
{{- $units := ternary (list "" "Ki" "Mi" "Gi" "Ti") (list "" "k" "M" "G" "T" "P") (hasKey $binary $unit) -}}
{{- $exact := mulf (float64 $number) (hasKey $binary $unit | ternary (get $binary $unit) (get $decimal $unit)) -}}
{{- $count := int64 $exact -}}
{{- if ne (float64 $count) (float64 $exact) -}}
{{- $text -}}
{{- else if and (hasKey $decimal $unit) (mod $count 1000) -}}
{{- $count }}m
{{- else -}}
{{- if hasKey $decimal $unit -}}{{- $count = div $count 1000 -}}{{- end -}}
{{- $at := 0 -}}
{{- range until (sub (len $units) 1 | int) -}}
{{- if and $count (not (mod $count $step)) -}}{{- $count = div $count $step -}}{{- $at = add1 $at -}}{{- end -}}
{{- end -}}
{{- $count }}{{ index $units (int $at) }}
{{- end -}}
{{- end -}}
{{- end }}
