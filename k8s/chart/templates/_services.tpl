{{/*
Fields of a Service beside selector and ports. Call with (list $ service field): values such as router.service, and
their name for messages. Families of `services` hold where the Service has none of its own.
*/}}
{{- define "penstock.serviceFields" -}}
{{- $ := index . 0 -}}
{{- $service := index . 1 -}}
{{- $at := index . 2 -}}
{{- $type := default "ClusterIP" $service.type -}}
{{- $outside := ne $type "ClusterIP" -}}
{{- range $field := list "loadBalancerClass" "loadBalancerSourceRanges" "healthCheckNodePort" -}}
{{- $value := get $service $field -}}
{{- if and $value (ne $type "LoadBalancer") -}}
{{- fail (printf "%s.%s needs %s.type LoadBalancer, got %s" $at $field $at $type) -}}
{{- end -}}
{{- end -}}
{{- if and $service.nodePort (not $outside) -}}
{{- fail (printf "%s.nodePort needs %s.type NodePort or LoadBalancer, got %s" $at $at $type) -}}
{{- end -}}
{{- if and $service.externalTrafficPolicy (not (or $outside $service.externalIPs)) -}}
{{- fail (printf "%s.externalTrafficPolicy needs %s.type NodePort or LoadBalancer, or externalIPs, got %s" $at $at $type) -}}
{{- end -}}
{{- if and $service.healthCheckNodePort (ne (default "" $service.externalTrafficPolicy) "Local") -}}
{{- fail (printf "%s.healthCheckNodePort needs %s.externalTrafficPolicy Local, got %s" $at $at (default "Cluster" $service.externalTrafficPolicy)) -}}
{{- end -}}
{{- if and $service.sessionAffinitySeconds (ne (default "" $service.sessionAffinity) "ClientIP") -}}
{{- fail (printf "%s.sessionAffinitySeconds needs %s.sessionAffinity ClientIP, got %s" $at $at (default "None" $service.sessionAffinity)) -}}
{{- end -}}
type: {{ $type }}
{{- range $field := list "loadBalancerClass" "externalTrafficPolicy" "internalTrafficPolicy" "sessionAffinity" "trafficDistribution" }}
{{- with get $service $field }}
{{ $field }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- range $field := list "loadBalancerSourceRanges" "externalIPs" }}
{{- with get $service $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $service.healthCheckNodePort }}
healthCheckNodePort: {{ int . }}
{{- end }}
{{- if and (eq $type "LoadBalancer") (hasKey $service "allocateLoadBalancerNodePorts") (not $service.allocateLoadBalancerNodePorts) }}
allocateLoadBalancerNodePorts: false
{{- end }}
{{- with $service.sessionAffinitySeconds }}
sessionAffinityConfig: {clientIP: {timeoutSeconds: {{ int . }}}}
{{- end }}
{{- include "penstock.ipFamilies" (list $ $service) }}
{{- end }}

{{/* IP families of a Service. Call with (list $ service); an empty one takes those of `services`. */}}
{{- define "penstock.ipFamilies" -}}
{{- $all := (index . 0).Values.services -}}
{{- $service := default dict (index . 1) -}}
{{- $policy := default $all.ipFamilyPolicy $service.ipFamilyPolicy -}}
{{- $families := default $all.ipFamilies $service.ipFamilies -}}
{{- if and (eq (default "" $policy) "SingleStack") (gt (len (default list $families)) 1) -}}
{{- if or $service.ipFamilies (not $service.ipFamilyPolicy) -}}
{{- fail (printf "ipFamilies must be one family where ipFamilyPolicy is SingleStack, got %s" (join ", " $families)) -}}
{{- end -}}
{{- /* Of those that hold for all Services. */ -}}
{{- $families = list (first $families) -}}
{{- end -}}
{{- with $policy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with $families }}
ipFamilies: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
An Ingress. Call with a dict: root, name, component, ingress (values), hosts, service, port (name of the Service's),
protocol (as ingress-nginx calls what is behind it), settings (annotations of ingress-nginx, which the user's replace).
*/}}
{{- define "penstock.ingress" -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .name }}
  labels: {{- include "penstock.labels" (list .root .component .ingress.labels) | nindent 4 }}
  {{- with merge (deepCopy (default dict .ingress.annotations)) (default dict .settings) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .ingress.className }}
  ingressClassName: {{ . | quote }}
  {{- end }}
  {{- if .ingress.tlsSecret }}
  tls:
    - secretName: {{ .ingress.tlsSecret | quote }}
      hosts: {{- toYaml .hosts | nindent 8 }}
  {{- end }}
  rules:
    {{- range .hosts }}
    - host: {{ . | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend: {service: {name: {{ $.service }}, port: {name: {{ $.port }}}}}
    {{- end }}
{{- end }}

{{/*
What ingress-nginx needs for streams of hours, and for uploads: routers have limits of their own. Other controllers
ignore it. Call with (list $ protocol).
*/}}
{{- define "penstock.nginxSettings" -}}
{{- $prefix := "nginx.ingress.kubernetes.io/" -}}
{{- $long := include "penstock.streamSeconds" (index . 0) -}}
{{- dict (printf "%sbackend-protocol" $prefix) (index . 1) (printf "%sproxy-read-timeout" $prefix) $long (printf "%sproxy-send-timeout" $prefix) $long (printf "%sproxy-buffering" $prefix) "off" (printf "%sproxy-body-size" $prefix) "0" | toJson -}}
{{- end }}

{{/* Seconds without a byte after which a proxy may cut. Routers send a message each second to those who wait. */}}
{{- define "penstock.streamSeconds" -}}3600{{- end }}

{{/* Ports of the routers' Services. Call with (list $ port). */}}
{{- define "penstock.grpcPort" -}}
{{- $ := index . 0 -}}
- name: grpc
  port: {{ index . 1 }}
  targetPort: grpc
  {{- if not $.Values.router.tls.enabled }}
  appProtocol: kubernetes.io/h2c
  {{- end }}
{{- end }}
{{- define "penstock.httpPort" -}}
{{- $ := index . 0 -}}
- name: http
  port: {{ index . 1 }}
  targetPort: http
  {{- if not $.Values.router.tls.enabled }}
  appProtocol: http
  {{- end }}
{{- end }}
