{{/* Values that contradict each other. */}}
{{- define "mig-exporter.check" -}}
{{- $root := eq (int .Values.runAsUser) 0 -}}
{{- range $place := list "nodeSelector" "affinity" -}}
{{- $label := regexFind "nvidia\\.com/gpu\\.deploy\\.[a-z-]+" (index $.Values $place | toJson) -}}
{{- if and $.Values.control.enabled $label -}}
{{ printf "%s: %s ends the pod while another controller changes MIG or the driver; a pod with control.enabled must not be ended by it. Take it out" $place $label | fail }}
{{- end -}}
{{- end -}}
{{- if and .Values.control.enabled (not $root) -}}
{{ fail "runAsUser: control.enabled needs root (runAsUser: 0)" }}
{{- end -}}
{{- if and .Values.control.enabled (not .Values.kubelet.podResources.enabled) -}}
{{ fail "kubelet.podResources.enabled: control.enabled needs it, or every device counts as busy" }}
{{- end -}}
{{- if and .Values.mig.monitor (not $root) -}}
{{ fail "runAsUser: mig.monitor needs root (runAsUser: 0); Kubernetes gives capabilities to root only, with privileged, too" }}
{{- end -}}
{{- if and .Values.kernelLog.enabled (not $root) -}}
{{ fail "runAsUser: kernelLog.enabled needs root (runAsUser: 0); Kubernetes gives CAP_SYSLOG to root only" }}
{{- end -}}
{{- if and .Values.kernelLog.enabled (not .Values.kernelLog.deviceResource) (not .Values.privileged) -}}
{{ fail "kernelLog.deviceResource: without privileged: true a container may not open /dev/kmsg, even if it is mounted; name the resource of a device plugin that offers it (docs/deploy-kubernetes.md)" }}
{{- end -}}
{{- if and .Values.kernelLog.deviceResource (not .Values.kernelLog.enabled) -}}
{{ fail "kernelLog.enabled: kernelLog.deviceResource needs it" }}
{{- end -}}
{{- if and .Values.advise.keepEvidence (not $root) -}}
{{ fail "runAsUser: advise.keepEvidence needs root (runAsUser: 0), whose state.hostPath is" }}
{{- end -}}
{{- if and .Values.driver.hostPath (not .Values.privileged) -}}
{{ fail "driver.hostPath: it needs privileged: true; without the container toolkit the container has no device otherwise" }}
{{- end -}}
{{- if and .Values.driver.nriDevice .Values.runtimeClassName -}}
{{ fail "driver.nriDevice: with the NRI plugin there is no runtime class; set runtimeClassName to an empty text" }}
{{- end -}}
{{- if and (eq .Values.dcgm.mode "remote") (not .Values.dcgm.address) -}}
{{ fail "dcgm.address: dcgm.mode remote needs the address of a host engine, HOST:PORT or the path of a unix socket" }}
{{- end -}}
{{- if and (ne .Values.dcgm.mode "remote") .Values.dcgm.address -}}
{{ fail "dcgm.address: it needs dcgm.mode: remote" }}
{{- end -}}
{{- if and (eq .Values.dcgm.mode "embedded") (not $root) -}}
{{ fail "runAsUser: dcgm.mode embedded needs root (runAsUser: 0)" }}
{{- end -}}
{{- if not .Values.kubelet.podResources.enabled -}}
{{- range $switch, $on := dict
      "podMetadata.enabled" .Values.podMetadata.enabled
      "hostProcesses.enabled" .Values.hostProcesses.enabled -}}
{{- if $on -}}
{{ printf "kubelet.podResources.enabled: %s needs it; without it no pod is known" $switch | fail }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.advise.keepEvidence (not .Values.advise.enabled) -}}
{{ fail "advise.enabled: advise.keepEvidence needs it" }}
{{- end -}}
{{- if and .Values.prometheusRule.inference (not .Values.prometheusRule.enabled) -}}
{{ fail "prometheusRule.enabled: prometheusRule.inference needs it" }}
{{- end -}}
{{- if and .Values.advise.serverMetrics (not .Values.advise.enabled) -}}
{{ fail "advise.enabled: advise.serverMetrics needs it" }}
{{- end -}}
{{- if and .Values.advise.serverMetrics (not (include "mig-exporter.asksAPIServer" .)) -}}
{{ fail "podMetadata.enabled: advise.serverMetrics needs it" }}
{{- end -}}
{{- range $value := list "serversTo" "serverPorts" -}}
{{- if and (index $.Values.networkPolicy $value) (not $.Values.advise.serverMetrics) -}}
{{ printf "advise.serverMetrics: networkPolicy.%s needs it" $value | fail }}
{{- end -}}
{{- end -}}
{{- if and (or .Values.podMetadata.labels .Values.podMetadata.resourceClaims) (not (include "mig-exporter.asksAPIServer" .)) -}}
{{ fail "podMetadata.enabled: podMetadata.labels and podMetadata.resourceClaims need it" }}
{{- end -}}
{{- if and (eq .Values.nodeLabels.mode "follow") (not .Values.control.enabled) -}}
{{ fail "control.enabled: nodeLabels.mode=follow needs it" }}
{{- end -}}
{{- $control := .Values.control -}}
{{- $network := $control.network -}}
{{- if not $control.enabled -}}
{{- range $value, $set := dict
      "control.mode=apply" (ne $control.mode "plan")
      "control.cordon" $control.cordon
      "control.devicePlugin" (or $control.devicePlugin.namespace $control.devicePlugin.labels)
      "control.restore" $control.restore
      "control.allowGid" (ge (int $control.allowGid) 0)
      "control.layouts.existingConfigMap" $control.layouts.existingConfigMap
      "control.network.enabled" $network.enabled -}}
{{- if $set -}}
{{ printf "control.enabled: %s needs it" $value | fail }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.nodeStatus.events (not $control.enabled) -}}
{{ fail "control.enabled: nodeStatus.events needs it; the Events are about operations of partition control" }}
{{- end -}}
{{- if and (include "mig-exporter.changesNode" .) (eq .Values.rbac.nodePolicy "create") (semverCompare "<1.30-0" .Capabilities.KubeVersion.Version) -}}
{{ fail "rbac.nodePolicy: Kubernetes before 1.30 has no ValidatingAdmissionPolicy, without which one node's token can change all nodes. If that is acceptable, say none" }}
{{- end -}}
{{- $plugin := $control.devicePlugin -}}
{{- if ne (empty $plugin.namespace) (empty $plugin.labels) -}}
{{ fail "control.devicePlugin: namespace and labels need each other; they name the device plugin's pods" }}
{{- end -}}
{{- if and $plugin.namespace (not $control.cordon) -}}
{{ fail "control.cordon: control.devicePlugin needs it; until the plugin has restarted, pods may be given devices that do not exist" }}
{{- end -}}
{{- if and $plugin.namespace (eq $plugin.admissionPolicy "create") (semverCompare "<1.30-0" .Capabilities.KubeVersion.Version) -}}
{{ fail "control.devicePlugin.admissionPolicy: Kubernetes before 1.30 has no ValidatingAdmissionPolicy, without which one node's token can delete all pods of control.devicePlugin.namespace. If that is acceptable, say none" }}
{{- end -}}
{{- if not $network.enabled -}}
{{- range $value, $set := dict
      "control.network.hostPort" $network.hostPort
      "control.network.existingSecret" $network.existingSecret
      "control.network.kubernetesTokens" $network.kubernetesTokens
      "control.network.audiences" $network.audiences
      "networkPolicy.controlFrom" .Values.networkPolicy.controlFrom -}}
{{- if $set -}}
{{ printf "control.network.enabled: %s needs it" $value | fail }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $kubectl := $control.kubectl -}}
{{- if ne (empty $kubectl.caCertificate) (empty $kubectl.serverName) -}}
{{ fail "control.kubectl: caCertificate and serverName need each other; by both kubectl mig verifies the exporters" }}
{{- end -}}
{{- if and $kubectl.caCertificate (not $network.kubernetesTokens) -}}
{{ fail "control.network.kubernetesTokens: control.kubectl.caCertificate needs it; kubectl mig authenticates by Kubernetes tokens" }}
{{- end -}}
{{- range $verb, $on := $kubectl.accounts -}}
{{- if and $on (not $kubectl.caCertificate) -}}
{{ printf "control.kubectl.caCertificate: control.kubectl.accounts.%s needs it; without it kubectl mig has no exporter that it can verify" $verb | fail }}
{{- end -}}
{{- end -}}
{{- if and $kubectl.runs (not $kubectl.caCertificate) -}}
{{ fail "control.kubectl.caCertificate: control.kubectl.runs needs it; without it kubectl mig has no exporter that it can verify" }}
{{- end -}}
{{- if and $kubectl.evict (not $kubectl.runs) -}}
{{ fail "control.kubectl.runs: control.kubectl.evict needs it; runs alone evict pods" }}
{{- end -}}
{{- if and $network.enabled (eq (int $network.port) (int .Values.web.port)) -}}
{{ fail "control.network.port: it is web.port, too; each needs a port of its own" }}
{{- end -}}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 (.Values.updateStrategy | default dict) | toString -}}
{{- if and (or $control.enabled .Values.hostNetwork) (not (has $surge (list "0" "0%"))) -}}
{{ fail "updateStrategy.rollingUpdate.maxSurge: with control.enabled or hostNetwork a node has one pod at a time; the second would wait for the state folder or the port" }}
{{- end -}}
{{- if and .Values.hostNetwork .Values.networkPolicy.enabled -}}
{{ fail "networkPolicy.enabled: a NetworkPolicy does not hold for pods with hostNetwork" }}
{{- end -}}
{{- $rights := or (and .Values.rbac.create (include "mig-exporter.asksAPIServer" .)) .Values.openshift.createSCC -}}
{{- if and $rights (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{ fail "serviceAccount.name: without serviceAccount.create it names the account that gets the rights; those of the namespace's default account would be every pod's" }}
{{- end -}}
{{- if and .Values.control.restore (ne .Values.control.mode "apply") -}}
{{ fail "control.restore: it needs control.mode: apply" }}
{{- end -}}
{{- if and .Values.control.network.enabled (not .Values.control.network.existingSecret) -}}
{{ fail "control.network.existingSecret: control.network.enabled needs a Secret with control.yaml and its certificate" }}
{{- end -}}
{{- if and .Values.web.probeScheme (not .Values.web.existingSecret) -}}
{{ fail "web.probeScheme: it is for web.existingSecret; without one probes use HTTP" }}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{ fail "serviceMonitor, podMonitor: enable one of them; two jobs would count each GPU twice" }}
{{- end -}}
{{- range $name := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := index $.Values $name -}}
{{- if and $monitor.enabled $monitor.interval $monitor.scrapeTimeout -}}
{{- $interval := include "mig-exporter.milliseconds" $monitor.interval | int64 -}}
{{- if gt (include "mig-exporter.milliseconds" $monitor.scrapeTimeout | int64) $interval -}}
{{ printf "%s.scrapeTimeout: %s is longer than %s.interval, %s; Prometheus would not take the job. Shorten it, or scrape less often" $name $monitor.scrapeTimeout $name $monitor.interval | fail }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) -}}
{{ fail "service.enabled: serviceMonitor needs it; podMonitor does not" }}
{{- end -}}
{{- end }}
