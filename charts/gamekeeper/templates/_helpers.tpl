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

{{- /* Whom the policies hold: every identity that carries a pod's UID, whichever account the template gave it, and every
games' account, also by a token that is bound to no pod; but not the operator's own. */}}
{{- define "gamekeeper.games" -}}
matchConditions:
- name: from-a-pod
  expression: >-
    (has(request.userInfo.extra) && 'authentication.kubernetes.io/pod-uid' in request.userInfo.extra)
    || (request.userInfo.username.startsWith('system:serviceaccount:')
    && request.userInfo.username.endsWith(':gamekeeper-game'))
- name: not-the-operator
  expression: >-
    request.userInfo.username != 'system:serviceaccount:{{ .Release.Namespace }}:gamekeeper'
{{- range .Values.exemptServiceAccounts }}
- name: not-{{ . | replace ":" "-" }}
  expression: request.userInfo.username != 'system:serviceaccount:{{ . }}'
{{- end }}
{{- end }}
