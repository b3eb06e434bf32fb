{{/* The chart's name. A release's name may hold dots, a broker's may not. */}}
{{- define "seaweedq.name" -}}
{{- default .Chart.Name .Values.nameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "seaweedq.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What all of a release's pods have, the test's too. */}}
{{- define "seaweedq.releaseLabels" -}}
app.kubernetes.io/name: {{ include "seaweedq.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What brokers alone have. */}}
{{- define "seaweedq.brokerLabels" -}}
{{ include "seaweedq.releaseLabels" . }}
app.kubernetes.io/component: broker
{{- end -}}

{{- define "seaweedq.labels" -}}
{{ include "seaweedq.brokerLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "seaweedq.serviceAccount" -}}
{{- default (ternary (include "seaweedq.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "seaweedq.secret" -}}
{{- default (include "seaweedq.fullname" .) .Values.secret.existingSecret -}}
{{- end -}}

{{/* The names by which clients may address the brokers: the service's, as pods write them, and what the values add. */}}
{{- define "seaweedq.allowedHosts" -}}
{{- $name := include "seaweedq.fullname" . -}}
{{- $inside := printf "%s.%s" $name .Release.Namespace -}}
{{- $own := list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.%s" $inside .Values.service.clusterDomain) -}}
{{- join "," (concat $own .Values.service.hosts) -}}
{{- end -}}

{{/* The secret with the brokers' certificate, empty for plain HTTP. */}}
{{- define "seaweedq.tlsSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- if .Values.tls.certManager.enabled }}{{ fail "tls.existingSecret and tls.certManager.enabled: choose one" }}{{ end -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- printf "%s-tls" (include "seaweedq.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "seaweedq.scheme" -}}
{{- ternary "https" "http" (ne (include "seaweedq.tlsSecret" .) "") -}}
{{- end -}}

{{/* Below it each broker has a name of its own, for certificates: its address with dashes. Of the headless service. */}}
{{- define "seaweedq.brokersDomain" -}}
{{- printf "%s-brokers.%s.svc.%s" (include "seaweedq.fullname" .) .Release.Namespace .Values.service.clusterDomain -}}
{{- end -}}

{{/* The names for which a certificate must be. */}}
{{- define "seaweedq.certificateNames" -}}
{{- append (splitList "," (include "seaweedq.allowedHosts" .)) (printf "*.%s" (include "seaweedq.brokersDomain" .)) | toJson -}}
{{- end -}}

{{/* The variable with the token of a pod that asks brokers: `own` is a tokenSecret of the values, else the admin token
counts; empty where neither is given. */}}
{{- define "seaweedq.token" -}}
{{- if .own.name -}}
- {name: TOKEN, valueFrom: {secretKeyRef: {name: {{ .own.name }}, key: {{ .own.key | quote }}}}}
{{- else if .root.Values.adminToken.existingSecret -}}
- {name: TOKEN, valueFrom: {secretKeyRef: {name: {{ .root.Values.adminToken.existingSecret }}, key: {{ .root.Values.adminToken.key | quote }}}}}
{{- end -}}
{{- end -}}

{{/* The labels of what marks pods. */}}
{{- define "seaweedq.markerLabels" -}}
{{ include "seaweedq.releaseLabels" . }}
app.kubernetes.io/component: marker
{{- end -}}

{{- define "seaweedq.image" -}}
{{- $repository := required "image.repository is needed: build the image with the project's Dockerfile and push it" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A number as people write it: Helm reads large ones as floats and would print 5.36870912e+08. */}}
{{- define "seaweedq.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Annotations of the pods. A change of the settings or of a secret starts a rollout, but for the cluster secret. The
autoscaler of nodes may move brokers: it would not touch a pod with an emptyDir. */}}
{{- define "seaweedq.podAnnotations" -}}
checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
checksum/secret: {{ omit .Values.secret "clusterSecret" | toJson | sha256sum }}
cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes: data,tmp
{{- end -}}

{{/* How many brokers. It is always said: a Deployment without it has one. With autoscaling what runs stays, and is never
fewer than minReplicas. */}}
{{- define "seaweedq.replicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "seaweedq.fullname" .) -}}
{{- max .Values.autoscaling.minReplicas (dig "spec" "replicas" 0 $running) -}}
{{- else -}}
{{- .Values.replicaCount -}}
{{- end -}}
{{- end -}}

{{/* Whether pods have addresses of IPv6. */}}
{{- define "seaweedq.ipv6" -}}
{{- if or (eq .Values.ipFamily "IPv6") (hasSuffix "DualStack" .Values.service.ipFamilyPolicy) }}yes{{ end -}}
{{- end -}}

{{/* The cluster secret in a Secret of the cluster, empty where there is none. */}}
{{- define "seaweedq.secretInUse" -}}
{{- $secret := lookup "v1" "Secret" .namespace .name -}}
{{- dig "data" "SEAWEEDQ_CLUSTER_SECRET" "" $secret | b64dec -}}
{{- end -}}

{{/* Brokers with different cluster secrets refuse each other: a rollout from one secret to the other never ends, and a
broker that starts again meanwhile does not come back. So nothing is changed while brokers run. */}}
{{- define "seaweedq.sameClusterSecret" -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "seaweedq.fullname" .) -}}
{{- if dig "spec" "replicas" 0 $running -}}
{{- range (first $running.spec.template.spec.containers).envFrom -}}
{{- $name := dig "secretRef" "name" "" . -}}
{{- if $name -}}
{{- $old := include "seaweedq.secretInUse" (dict "namespace" $.Release.Namespace "name" $name) -}}
{{- $new := $.Values.secret.clusterSecret -}}
{{- if $.Values.secret.existingSecret -}}
{{- $new = include "seaweedq.secretInUse" (dict "namespace" $.Release.Namespace "name" $.Values.secret.existingSecret) -}}
{{- end -}}
{{- if and $old (ne $old $new) -}}
{{- fail (printf "the cluster secret cannot change while brokers run, since those with the old one refuse those with the new one: first kubectl -n %s scale deployment/%s --replicas 0, wait until its pods are gone, then upgrade" $.Release.Namespace $running.metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How quickly an autoscaler follows. The leader has waited before it recommends fewer brokers; each step moves segments,
so brokers leave one at a time. */}}
{{- define "seaweedq.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
scaleDown:
  stabilizationWindowSeconds: 0
  policies:
    - type: Pods
      value: 1
      periodSeconds: 120
{{- end }}
