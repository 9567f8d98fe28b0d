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

{{/* Name of what is the cluster's: it has the namespace, so that two releases do not meet. */}}
{{- define "mig-exporter.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "mig-exporter.fullname" .) }}
{{- end }}

{{- define "mig-exporter.serviceAccount" -}}
{{ default (ternary (include "mig-exporter.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "mig-exporter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mig-exporter.name" . | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{- define "mig-exporter.labels" -}}
{{ include "mig-exporter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What is switched on: a text where it is, an empty one where it is not. */}}
{{- define "mig-exporter.asksAPIServer" -}}
{{ if or .Values.podMetadata.enabled .Values.control.enabled .Values.nodeStatus.conditions .Values.nodeStatus.events (ne .Values.nodeLabels.mode "off") }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.changesNode" -}}
{{ if or .Values.control.cordon .Values.nodeStatus.conditions (eq .Values.nodeLabels.mode "follow") }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.seesMIG" -}}
{{ if or .Values.mig.monitor .Values.control.enabled }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.seesProcesses" -}}
{{ if or .Values.hostProcesses.enabled .Values.control.enabled }}yes{{ end }}
{{- end }}
{{/* Neither where a device plugin puts it in, nor where all of /dev is mounted. */}}
{{- define "mig-exporter.mountsKernelLog" -}}
{{ if and .Values.kernelLog.enabled (not .Values.kernelLog.deviceResource) (not .Values.driver.hostPath) }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.readsCheckpoint" -}}
{{ if and .Values.kubelet.checkpoint.enabled .Values.kubelet.podResources.enabled (eq (int .Values.runAsUser) 0) }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.checkpointFolder" -}}
{{ default (printf "%s/device-plugins" (dir .Values.kubelet.podResources.hostPath)) .Values.kubelet.checkpoint.hostPath }}
{{- end }}
{{/* Whether nothing tells a DRA claim for use from one for administrative access, in a cluster that has claims. */}}
{{- define "mig-exporter.lacksClaims" -}}
{{- $reads := or .Values.podMetadata.resourceClaims .Values.control.enabled -}}
{{- $v := .Capabilities.APIVersions -}}
{{- $has := or ($v.Has "resource.k8s.io/v1") ($v.Has "resource.k8s.io/v1beta2") ($v.Has "resource.k8s.io/v1beta1") -}}
{{ if and $has .Values.kubelet.podResources.enabled (not $reads) }}yes{{ end }}
{{- end }}
{{- define "mig-exporter.keepsState" -}}
{{ if or .Values.advise.keepEvidence .Values.control.enabled }}yes{{ end }}
{{- end }}

{{/* The pods of the device plugin that is restarted, NAMESPACE/KEY=VALUE,...; empty if none is. */}}
{{- define "mig-exporter.devicePlugin" -}}
{{- $plugin := .Values.control.devicePlugin -}}
{{- if $plugin.namespace -}}
{{- $labels := list -}}
{{- range $key, $value := $plugin.labels -}}
{{- $labels = append $labels (printf "%s=%s" $key $value) -}}
{{- end -}}
{{ printf "%s/%s" $plugin.namespace (join "," $labels) }}
{{- end -}}
{{- end }}

{{/* Capabilities that the container needs, each on a line. */}}
{{- define "mig-exporter.capabilities" -}}
{{- if or (include "mig-exporter.seesMIG" .) (eq .Values.dcgm.mode "embedded") }}
- SYS_ADMIN
{{- end }}
{{- if .Values.control.enabled }}
- SYS_PTRACE
- DAC_READ_SEARCH
{{- end }}
{{- if .Values.kernelLog.enabled }}
- SYSLOG
{{- end }}
{{- end }}

{{/* Requests and limits, with the device of the kernel's log. */}}
{{- define "mig-exporter.resources" -}}
{{- $resources := deepCopy (.Values.resources | default dict) -}}
{{- with .Values.kernelLog.deviceResource -}}
{{- $resources = mergeOverwrite $resources (dict "limits" (dict . "1")) -}}
{{- end -}}
{{ if $resources }}{{ toYaml $resources }}{{ end }}
{{- end }}

{{/* A duration as Prometheus writes it, such as 1m30s, in milliseconds. */}}
{{- define "mig-exporter.milliseconds" -}}
{{- $units := dict "y" 31536000000 "w" 604800000 "d" 86400000 "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = add $sum (mul (trimSuffix $unit . | atoi) (index $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end }}
