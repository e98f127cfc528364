{{- /* Completes .Values. Every template begins with it. A value that is null, or missing in the values of an older release,
becomes the chart's default (files/defaults.yaml) if it is a scalar, and empty if it is a map or a list. */ -}}
{{- define "dra-driver.defaults" -}}
{{- include "dra-driver.withoutNull" .Values -}}
{{- include "dra-driver.fill" (dict "values" .Values "defaults" (.Files.Get "files/defaults.yaml" | fromYaml)) -}}
{{- end }}

{{- define "dra-driver.withoutNull" -}}
{{- $values := . -}}
{{- range $name, $value := . -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $values $name -}}
{{- else if kindIs "map" $value -}}
{{- include "dra-driver.withoutNull" $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "dra-driver.fill" -}}
{{- $values := .values -}}
{{- range $name, $default := .defaults -}}
{{- if kindIs "map" $default -}}
{{- if not (hasKey $values $name) -}}
{{- $_ := set $values $name dict -}}
{{- end -}}
{{- include "dra-driver.fill" (dict "values" (index $values $name) "defaults" $default) -}}
{{- else if not (hasKey $values $name) -}}
{{- $_ := set $values $name $default -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "dra-driver.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "dra-driver.driverName" -}}
{{- if .Values.globs -}}
{{- $globs := fromYaml .Values.globs -}}
{{- $name := required (printf "globs is not a file of globs: %s" ($globs.Error | default "it names no driver")) $globs.driver -}}
{{- if and .Values.driverName (ne .Values.driverName $name) -}}
{{- fail (printf "driverName is %s, and globs says %s: leave out driverName" .Values.driverName $name) -}}
{{- end -}}
{{- $name -}}
{{- else -}}
{{- /* `helm lint` continues without a required value, and names of objects would then be invalid */ -}}
{{- required "driverName is required: the name in dra_kit.Driver(\"...\")" .Values.driverName | default "driver.example" -}}
{{- end -}}
{{- end }}

{{- /* TARGET of the roles. */ -}}
{{- define "dra-driver.target" -}}
{{- if and .Values.globs .Values.target -}}
{{- fail "target and globs cannot be combined: they name two drivers" -}}
{{- else if .Values.globs -}}
/etc/dra-kit/globs/globs.yaml
{{- else -}}
{{- required "target is required with an image: the TARGET of dra-kit, such as my_driver:driver" .Values.target -}}
{{- end -}}
{{- end }}

{{- /* The directory of the node's durable state. */ -}}
{{- define "dra-driver.stateDir" -}}
{{- .Values.node.stateDir | default (printf "%s/plugins/%s" .Values.node.kubeletDir (include "dra-driver.driverName" .)) -}}
{{- end }}

{{- /* The mount of the file of globs, for every role. Empty for other drivers. */ -}}
{{- define "dra-driver.globsMount" -}}
{{- if .Values.globs -}}
- name: globs
  mountPath: /etc/dra-kit/globs
  readOnly: true
{{- end -}}
{{- end }}

{{- define "dra-driver.globsVolume" -}}
{{- if .Values.globs -}}
- name: globs
  configMap:
    name: {{ include "dra-driver.fullname" . }}-globs
{{- end -}}
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
# the pods that need the token mount it themselves, so that no other pod gets it only by naming the account
automountServiceAccountToken: false
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

{{- /* The labels that select a role's pods. They never change. Call like dra-driver.labels. */ -}}
{{- define "dra-driver.selector" -}}
app.kubernetes.io/name: {{ include "dra-driver.driverName" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "dra-driver.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ required "image.tag or image.digest is required with image.repository" $image.tag }}
{{- end -}}
{{- end }}

{{- define "dra-driver.podMetadata" -}}
labels:
  {{- include "dra-driver.selector" . | nindent 2 }}
  {{- with (index .root.Values .role).podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := (index .root.Values .role).podAnnotations -}}
{{- with .root.Values.globs }}
{{- /* pods are replaced when the file changes */ -}}
{{- $annotations = merge (dict "dra-kit/globs" (sha256sum .)) $annotations }}
{{- end }}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The fields of a pod that are the same in all roles. */ -}}
{{- define "dra-driver.pod" -}}
{{- $values := index .root.Values .role -}}
serviceAccountName: {{ include "dra-driver.fullname" .root }}-{{ .role }}
# every role sends requests to the API server; the webhook asks which versions it serves
automountServiceAccountToken: true
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The fields of a container that are the same in all roles. */ -}}
{{- define "dra-driver.container" -}}
{{- $values := index .root.Values .role -}}
name: {{ .role }}
image: {{ include "dra-driver.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- /* why a role refuses to start is in the pod's status, for kubectl describe and dra-kit check */}}
terminationMessagePolicy: FallbackToLogsOnError
args:
  {{- if and (eq .role "node") .root.Values.node.decommission }}
  - decommission
  - {{ include "dra-driver.stateDir" .root | quote }}
  - {{ include "dra-driver.target" .root | quote }}
  - --stay
  # the pod whose condition confirms that nothing of the driver is left
  - --pod={{ .root.Release.Namespace }}/$(DRA_POD_NAME)
  {{- else }}
  - {{ .role }}
  - {{ include "dra-driver.target" .root | quote }}
  {{- end }}
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The name for which rights and directories are created. If the driver of a process has another name, the process fails. */ -}}
{{- define "dra-driver.driverEnv" -}}
- name: DRA_DRIVER
  value: {{ include "dra-driver.driverName" . | quote }}
{{- end }}

{{- define "dra-driver.loggingEnv" -}}
- name: DRA_LOG_LEVEL
  value: {{ .Values.logging.level }}
- name: DRA_LOG_FORMAT
  value: {{ .Values.logging.format }}
{{- end }}

{{- /* The port of a role's probes, empty for none. In the network of the host, the two pods of a node that overlap in an
update would need the same port. */ -}}
{{- define "dra-driver.probePort" -}}
{{- $values := index .root.Values .role -}}
{{- if and $values.probePort (not $values.hostNetwork) -}}
{{- int $values.probePort -}}
{{- end -}}
{{- end }}

{{- define "dra-driver.probeEnv" -}}
{{- with include "dra-driver.probePort" . -}}
- name: DRA_PROBE_ADDRESS
  value: {{ printf ":%s" . | quote }}
{{- end }}
{{- end }}

{{- /* It succeeds unless a part hangs. The delay is for a machine that starts everything at once. */ -}}
{{- define "dra-driver.livenessProbe" -}}
livenessProbe:
  httpGet:
    path: /healthz
    port: probes
  initialDelaySeconds: 30
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{- define "dra-driver.readinessProbe" -}}
readinessProbe:
  httpGet:
    path: /readyz
    port: probes
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- /* Whether a webhook is deployed: it has a certificate, or creates one. */ -}}
{{- define "dra-driver.hasWebhook" -}}
{{- $certificate := .Values.webhook.certificate -}}
{{- if and $certificate.selfMade (or $certificate.secretName $certificate.caBundle) -}}
{{- fail "webhook.certificate.selfMade cannot be combined with secretName or caBundle: the webhook makes both; set selfMade=false to use a certificate of your own" -}}
{{- end -}}
{{- if eq (toString $certificate.secretName) (include "dra-driver.selfMadeSecret" .) -}}
{{- fail (printf "webhook.certificate.secretName is %s, the Secret of selfMade, which comes and goes with it: store your own certificate under another name" $certificate.secretName) -}}
{{- end -}}
{{- if and .Values.image.repository .Values.webhook.enabled (or $certificate.secretName $certificate.selfMade) -}}
yes
{{- end -}}
{{- end }}

{{- /* The Secret for the certificate that the webhook creates. The webhook appends -self-made to its Service's name. */ -}}
{{- define "dra-driver.selfMadeSecret" -}}
{{ include "dra-driver.fullname" . }}-webhook-self-made
{{- end }}

{{- /* The Secret <fullname>-webhook, as JSON, if an administrator created it but helm would delete it with the upgraded release:
charts up to 0.1.0 stored the self-made certificate under this name. Otherwise, or if helm has no cluster, it is empty. */ -}}
{{- define "dra-driver.replacedSecret" -}}
{{- if .Release.IsUpgrade -}}
{{- $name := printf "%s-webhook" (include "dra-driver.fullname" .) -}}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "Role" .Release.Namespace $name -}}
{{- $rules := $role.rules | default list -}}
{{- if and $rules (has $name ((first $rules).resourceNames | default list)) -}}
{{- with lookup "v1" "Secret" .Release.Namespace $name -}}
{{- $self := and (eq .type "Opaque") (eq (get (.metadata.labels | default dict) "app.kubernetes.io/instance") $.Release.Name) -}}
{{- $kept := eq (get (.metadata.annotations | default dict) "helm.sh/resource-policy") "keep" -}}
{{- if and (not $kept) (or (not $self) (eq (toString $.Values.webhook.certificate.secretName) $name)) -}}
{{- toJson (dict "name" $name "type" .type) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* For roles that use only the API server and their own port. */ -}}
{{- define "dra-driver.ordinaryUser" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* A list of texts as JSON, which is also valid CEL. Each text is a template. Call with (dict "root" . "texts" …). */ -}}
{{- define "dra-driver.texts" -}}
{{- $texts := list -}}
{{- range .texts -}}
{{- $texts = append $texts (tpl . $.root) -}}
{{- end -}}
{{- toJson $texts -}}
{{- end }}

{{- /* What the node's account may write in addition to what every driver writes, as JSON: {"rules": [{group, resource, makes}]}, in
the terms of a policy's resourceRules. `makes` is empty if it may only delete, or connect, which needs only `get`. */ -}}
{{- define "dra-driver.nodeWrites" -}}
{{- $all := .Values.node.extraRules -}}
{{- range .Values.node.namespacedRules -}}
{{- $all = concat $all . -}}
{{- end -}}
{{- $writes := list -}}
{{- range $rule := $all -}}
{{- $makes := "" -}}
{{- $deletes := "" -}}
{{- range $rule.verbs -}}
{{- if has . (list "*" "create" "update" "patch") -}}
{{- $makes = "yes" -}}
{{- else if has . (list "delete" "deletecollection") -}}
{{- $deletes = "yes" -}}
{{- end -}}
{{- end -}}
{{- range $group := $rule.apiGroups -}}
{{- range $resource := $rule.resources -}}
{{- if or $makes $deletes (regexMatch "/(exec|attach|portforward|proxy|[*])$" $resource) -}}
{{- $writes = append $writes (dict "group" $group "resource" (eq $resource "*" | ternary "*/*" $resource) "makes" $makes) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "rules" $writes) -}}
{{- end }}
