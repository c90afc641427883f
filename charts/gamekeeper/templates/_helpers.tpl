{{- define "gamekeeper.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "gamekeeper.tlsSecret" -}}
{{ .Values.tls.secretName | default "gamekeeper-tls" }}
{{- end }}

{{- define "gamekeeper.selector" -}}
app.kubernetes.io/name: gamekeeper
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gamekeeper.labels" -}}
{{ include "gamekeeper.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
