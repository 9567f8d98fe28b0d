{{- define "mig-exporter.args" -}}
{{- $v := .Values -}}
- --web.listen-address=:{{ $v.web.port }}
{{- if not $v.web.state }}
- --no-web.state
{{- end }}
{{- if ne $v.web.processes "auto" }}
- --web.processes={{ $v.web.processes }}
{{- end }}
{{- if $v.web.existingSecret }}
- --web.config.file=/etc/mig-exporter/web/web-config.yaml
{{- end }}
{{- if $v.driver.hostPath }}
- --nvml.library-path=/usr/local/nvidia/lib64/libnvidia-ml.so.1
{{- end }}
{{- with $v.collectors }}
- {{ printf "--collectors=%s" (join "," .) | quote }}
{{- end }}
{{- if eq $v.dcgm.mode "remote" }}
- {{ printf "--dcgm.address=%s" $v.dcgm.address | quote }}
{{- else if eq $v.dcgm.mode "embedded" }}
- --dcgm.address=embedded
{{- end }}
{{- if $v.kernelLog.enabled }}
- --xid.kernel-log
{{- end }}
{{- if not $v.kubelet.podResources.enabled }}
- --kubernetes.labels=off
{{- end }}
{{- range $v.podMetadata.labels }}
- {{ printf "--kubernetes.pod-label=%s" . | quote }}
{{- end }}
{{- if $v.nodeStatus.conditions }}
- --kubernetes.node-conditions
{{- end }}
{{- if $v.nodeStatus.events }}
- --kubernetes.node-events
{{- end }}
{{- if ne $v.nodeLabels.mode "off" }}
- {{ printf "--kubernetes.node-labels=%s:%s/%s" $v.nodeLabels.mode $v.nodeLabels.configMap.namespace $v.nodeLabels.configMap.name | quote }}
{{- end }}
{{- if not $v.advise.enabled }}
- --no-advise.enabled
{{- else if $v.advise.keepEvidence }}
- --advise.state-dir=/var/lib/mig-exporter/advise
{{- end }}
{{- if $v.advise.serverMetrics }}
- --advise.server-metrics
{{- end }}
{{- if $v.control.enabled }}
- --control.enabled
- --control.mode={{ $v.control.mode }}
{{- if $v.control.cordon }}
- --control.cordon
{{- end }}
{{- with include "mig-exporter.devicePlugin" . }}
- {{ printf "--control.device-plugin=%s" . | quote }}
{{- end }}
{{- if $v.control.restore }}
- --control.restore
{{- end }}
{{- if ge (int $v.control.allowGid) 0 }}
- --control.allow-gid={{ int64 $v.control.allowGid }}
{{- end }}
{{- if $v.control.layouts.existingConfigMap }}
- --control.layouts=/etc/mig-exporter/layouts/layouts.yaml
{{- end }}
{{- if $v.control.network.enabled }}
- --control.listen-address=:{{ $v.control.network.port }}
- --control.config.file=/etc/mig-exporter/control/control.yaml
{{- range $v.control.network.audiences }}
- {{ printf "--control.audience=%s" . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- range $v.args }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "mig-exporter.env" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: {{ .Values.driver.visibleDevices | quote }}}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- if include "mig-exporter.seesMIG" . }}
- {name: NVIDIA_MIG_MONITOR_DEVICES, value: all}
{{- end }}
{{- if and .Values.control.enabled (eq .Values.control.mode "apply") }}
- {name: NVIDIA_MIG_CONFIG_DEVICES, value: all}
{{- end }}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- if include "mig-exporter.asksAPIServer" . }}
- {name: MIG_EXPORTER_KUBERNETES_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "mig-exporter.probe" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.web.existingSecret (not $root.Values.web.probeScheme) -}}
tcpSocket: {port: metrics}
{{- else -}}
httpGet: {path: {{ index . 1 }}, port: metrics, scheme: {{ default "HTTP" $root.Values.web.probeScheme }}}
{{- end }}
{{- end }}

{{- define "mig-exporter.mounts" -}}
{{- $v := .Values -}}
{{- if $v.kubelet.podResources.enabled }}
- {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
{{- end }}
{{- if include "mig-exporter.readsCheckpoint" . }}
- {name: device-plugins, mountPath: /var/lib/kubelet/device-plugins, readOnly: true}
{{- end }}
{{- if include "mig-exporter.seesProcesses" . }}
- {name: container-logs, mountPath: /var/log/containers, readOnly: true}
{{- end }}
{{- if $v.driver.hostPath }}
- {name: driver, mountPath: /usr/local/nvidia, readOnly: true, mountPropagation: HostToContainer}
- {name: dev, mountPath: /dev}
{{- end }}
{{- if include "mig-exporter.mountsKernelLog" . }}
- {name: kmsg, mountPath: /dev/kmsg, readOnly: true}
{{- end }}
{{- if include "mig-exporter.keepsState" . }}
- {name: state, mountPath: /var/lib/mig-exporter}
{{- end }}
- {name: control-socket, mountPath: /run/mig-exporter}
{{- if $v.control.layouts.existingConfigMap }}
- {name: layouts, mountPath: /etc/mig-exporter/layouts, readOnly: true}
{{- end }}
{{- if $v.control.network.enabled }}
- {name: control-config, mountPath: /etc/mig-exporter/control, readOnly: true}
{{- end }}
{{- if $v.web.existingSecret }}
- {name: web-config, mountPath: /etc/mig-exporter/web, readOnly: true}
{{- end }}
{{- with $v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "mig-exporter.volumes" -}}
{{- $v := .Values -}}
{{- if $v.kubelet.podResources.enabled }}
- {name: pod-resources, hostPath: {path: {{ $v.kubelet.podResources.hostPath | quote }}, type: Directory}}
{{- end }}
{{- if include "mig-exporter.readsCheckpoint" . }}
- {name: device-plugins, hostPath: {path: {{ include "mig-exporter.checkpointFolder" . | quote }}, type: Directory}}
{{- end }}
{{- if include "mig-exporter.seesProcesses" . }}
- {name: container-logs, hostPath: {path: /var/log/containers, type: Directory}}
{{- end }}
{{- if $v.driver.hostPath }}
- {name: driver, hostPath: {path: {{ $v.driver.hostPath | quote }}, type: Directory}}
- {name: dev, hostPath: {path: /dev, type: Directory}}
{{- end }}
{{- if include "mig-exporter.mountsKernelLog" . }}
- {name: kmsg, hostPath: {path: /dev/kmsg, type: CharDevice}}
{{- end }}
{{- if include "mig-exporter.keepsState" . }}
- {name: state, hostPath: {path: {{ $v.state.hostPath | quote }}, type: DirectoryOrCreate}}
{{- end }}
{{- if $v.control.enabled }}
- {name: control-socket, hostPath: {path: {{ $v.control.socketHostPath | quote }}, type: DirectoryOrCreate}}
{{- else }}
{{/* The socket on which root releases GPUs, by migctl in this container. */}}
- {name: control-socket, emptyDir: {sizeLimit: 1Mi}}
{{- end }}
{{- with $v.control.layouts.existingConfigMap }}
- {name: layouts, configMap: {name: {{ . | quote }}}}
{{- end }}
{{- if $v.control.network.enabled }}
- {name: control-config, secret: {secretName: {{ $v.control.network.existingSecret | quote }}, defaultMode: 0440}}
{{- end }}
{{- with $v.web.existingSecret }}
- {name: web-config, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The group of the control socket is among them: without CAP_CHOWN a process gives files to its own groups only. */}}
{{- define "mig-exporter.groups" -}}
{{- $groups := .Values.supplementalGroups -}}
{{- if and .Values.control.enabled (gt (int .Values.control.allowGid) 0) -}}
{{- $groups = append $groups (int .Values.control.allowGid) -}}
{{- end -}}
{{ if $groups }}{{ toJson $groups }}{{ end }}
{{- end }}
