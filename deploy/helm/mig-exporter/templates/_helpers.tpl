{{- define "mig-exporter.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "mig-exporter.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "mig-exporter.serviceAccount" -}}
{{ default (ternary (include "mig-exporter.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "mig-exporter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mig-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mig-exporter.labels" -}}
{{ include "mig-exporter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What is switched on: a text where it is, an empty one where it is not. */}}
{{- define "mig-exporter.asksAPIServer" -}}
{{ if or .Values.podMetadata.enabled .Values.control.enabled }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.seesMIG" -}}
{{ if or .Values.mig.monitor .Values.control.enabled }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.seesProcesses" -}}
{{ if or .Values.hostProcesses.enabled .Values.control.enabled }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.readsCheckpoint" -}}
{{ if or .Values.kubelet.checkpoint.enabled .Values.control.enabled }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.keepsState" -}}
{{ if or .Values.advise.keepEvidence .Values.control.enabled }}yes{{ end }}
{{- end }}

{{/* Capabilities that the container needs, each on a line. */}}
{{- define "mig-exporter.capabilities" -}}
{{- if include "mig-exporter.seesMIG" . }}
- SYS_ADMIN
{{- end }}
{{- if .Values.control.enabled }}
- SYS_PTRACE
- DAC_READ_SEARCH
{{- end }}
{{- end }}

{{/* Values that contradict each other. */}}
{{- define "mig-exporter.check" -}}
{{- $root := eq (int .Values.runAsUser) 0 -}}
{{- if and .Values.control.enabled (hasKey (.Values.nodeSelector | default dict) "nvidia.com/gpu.deploy.dcgm-exporter") -}}
{{ fail "nodeSelector: nvidia.com/gpu.deploy.dcgm-exporter ends the pod while another controller changes MIG; a pod with control.enabled must not be ended by it. Take it out" }}
{{- end -}}
{{- if and .Values.control.enabled (not $root) -}}
{{ fail "runAsUser: control.enabled needs root (runAsUser: 0)" }}
{{- end -}}
{{- if and .Values.control.enabled (not .Values.kubelet.podResources.enabled) -}}
{{ fail "kubelet.podResources.enabled: control.enabled needs it, or every device counts as busy" }}
{{- end -}}
{{- if and .Values.mig.monitor (not $root) (not .Values.privileged) -}}
{{ fail "runAsUser: mig.monitor needs root (runAsUser: 0); Kubernetes gives capabilities to root only" }}
{{- end -}}
{{- if and .Values.kubelet.checkpoint.enabled (not $root) -}}
{{ fail "runAsUser: kubelet.checkpoint needs root (runAsUser: 0)" }}
{{- end -}}
{{- if and .Values.advise.keepEvidence (not $root) -}}
{{ fail "runAsUser: advise.keepEvidence needs root (runAsUser: 0), whose state.hostPath is" }}
{{- end -}}
{{- if and .Values.driver.hostPath (not .Values.privileged) -}}
{{ fail "driver.hostPath: it needs privileged: true; without the container toolkit the container has no device otherwise" }}
{{- end -}}
{{- if and (or .Values.podMetadata.labels .Values.podMetadata.resourceClaims) (not (include "mig-exporter.asksAPIServer" .)) -}}
{{ fail "podMetadata.enabled: podMetadata.labels and podMetadata.resourceClaims need it" }}
{{- end -}}
{{- if and .Values.control.restore (ne .Values.control.mode "apply") -}}
{{ fail "control.restore: it needs control.mode: apply" }}
{{- end -}}
{{- if and (or .Values.control.network.enabled .Values.control.cordon .Values.control.restore) (not .Values.control.enabled) -}}
{{ fail "control.enabled: control.network, control.cordon and control.restore need it" }}
{{- end -}}
{{- if and .Values.control.network.enabled (not .Values.control.network.existingSecret) -}}
{{ fail "control.network.existingSecret: control.network.enabled needs a Secret with control.yaml and its certificate" }}
{{- end -}}
{{- if and .Values.control.network.kubernetesTokens (not .Values.control.network.enabled) -}}
{{ fail "control.network.enabled: control.network.kubernetesTokens needs it" }}
{{- end -}}
{{- if and .Values.web.probeScheme (not .Values.web.existingSecret) -}}
{{ fail "web.probeScheme: it is for web.existingSecret; without one probes use HTTP" }}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{ fail "serviceMonitor, podMonitor: enable one of them; two jobs would count each GPU twice" }}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) -}}
{{ fail "service.enabled: serviceMonitor needs it; podMonitor does not" }}
{{- end -}}
{{- end }}
