{{- define "dra-driver.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "dra-driver.driverName" -}}
{{- required "driverName is required: the name in dra_kit.Driver(\"...\")" .Values.driverName -}}
{{- end }}

{{- /* Call with (dict "root" . "role" "node"). */ -}}
{{- define "dra-driver.labels" -}}
app.kubernetes.io/name: {{ include "dra-driver.driverName" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- /* A ServiceAccount and the binding of the role of the same name. */ -}}
{{- define "dra-driver.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "dra-driver.fullname" .root }}-{{ .role }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "dra-driver.labels" . | nindent 4 }}
  {{- with (index .root.Values .role).serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "dra-driver.clusterRoleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "dra-driver.fullname" .root }}-{{ .role }}
  labels: {{- include "dra-driver.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "dra-driver.fullname" .root }}-{{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "dra-driver.fullname" .root }}-{{ .role }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
