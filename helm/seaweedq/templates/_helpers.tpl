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

{{- define "seaweedq.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* A number as people write it: Helm reads large ones as floats and would print 5.36870912e+08. */}}
{{- define "seaweedq.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- define "seaweedq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "seaweedq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}
