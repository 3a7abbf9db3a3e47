{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "farpool.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, unless it says farpool already. */}}
{{- define "farpool.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains (include "farpool.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "farpool.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "farpool.operator" -}}
{{- printf "%s-operator" (include "farpool.fullname" .) -}}
{{- end -}}

{{- define "farpool.memoryPriorityClass" -}}
{{- with .Values.dataPlane.memoryPriorityClass -}}
{{- if .name -}}
{{- .name -}}
{{- else if .create -}}
{{- printf "%s-memory-nodes" (include "farpool.fullname" $ | trunc 50 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "farpool.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else -}}
{{- include "farpool.operator" . -}}
{{- end -}}
{{- end -}}

{{/* What a selector may hold: nothing that an upgrade changes. The NetworkPolicies of pools admit pods of this name to their agents. */}}
{{- define "farpool.selector" -}}
app.kubernetes.io/name: farpool-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "farpool.labels" -}}
{{ include "farpool.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "farpool.injector" -}}
{{- printf "%s-injector" (include "farpool.fullname" .) -}}
{{- end -}}

{{- define "farpool.injectorSelector" -}}
app.kubernetes.io/name: farpool-injector
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: injector
{{- end -}}

{{- define "farpool.injectorLabels" -}}
{{ include "farpool.injectorSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The namespaces whose pods may ask for sidecars: never kube-system nor the injector's own, whose pods have to start when the injector is down. */}}
{{- define "farpool.sidecarNamespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [kube-system, kube-node-lease, kube-public, {{ .Release.Namespace }}]
  {{- with .Values.watchNamespaces }}
  - key: kubernetes.io/metadata.name
    operator: In
    values:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end -}}

{{/* An image reference from a repository, tag and digest, with the chart's appVersion where neither is given. */}}
{{- define "farpool.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .version .image.tag) -}}
{{- end -}}
{{- end -}}
