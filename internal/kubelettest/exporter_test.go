package kubelettest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
)

// The exporter's listeners, in the network of the node.
const (
	metricsURL     = "http://127.0.0.1:9401"
	controlAddress = "127.0.0.1:9402"
	controlDir     = "/run/mig-exporter"
	exporterFiles  = "/run/mig-exporter-files"
)

const controlConfig = `tls: {cert_file: control.crt, key_file: control.key}
kubernetes: true
`

// writeExporterFiles writes what the exporter's pod mounts: the scenario of the simulated driver, the configuration of
// partition control and its certificate.
func (n *node) writeExporterFiles() error {
	for _, dir := range []string{controlDir, "/var/lib/mig-exporter", exporterFiles} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for to, from := range map[string]string{
		"node.yaml": filepath.Join("testdata", "node.yaml"), "control.crt": n.pki.certFile("control"),
		"control.key": n.pki.keyFile("control"),
	} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(exporterFiles, to), content, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(exporterFiles, "control.yaml"), []byte(controlConfig), 0o600)
}

// exporterPod returns mig-exporter as a pod: with a read-only root, without any capability, and with the mounts and
// variables that docs/kubernetes.md names.
func exporterPod(name string) *corev1.Pod {
	c := corev1.Container{
		Name: "mig-exporter", Image: imageName, ImagePullPolicy: corev1.PullNever,
		Command: []string{"/bin/mig-exporter", "--nvml.library-path=" + libraryPath,
			"--web.listen-address=127.0.0.1:9401", "--kubernetes.resource-name=example.com/*",
			"--kubernetes.pod-label=team", "--collector.process",
			"--control.enabled", "--control.mode=apply", "--control.cordon", "--control.idle-for=0s",
			"--control.settle-timeout=1m",
			"--control.listen-address=" + controlAddress, "--control.config.file=/files/control.yaml"},
		SecurityContext: &corev1.SecurityContext{
			ReadOnlyRootFilesystem: ptr(true), AllowPrivilegeEscalation: ptr(false),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Env: []corev1.EnvVar{
			{Name: "MIG_SIM_SCENARIO", Value: "/files/node.yaml"},
			// There is no kube-proxy that would lead from the service's address to the API server.
			{Name: "KUBERNETES_SERVICE_HOST", Value: nodeAddress},
			{Name: "KUBERNETES_SERVICE_PORT", Value: "6443"},
			fromField("POD_NAMESPACE", "metadata.namespace"), fromField("POD_NAME", "metadata.name"),
			fromField("MIG_EXPORTER_KUBERNETES_NODE_NAME", "spec.nodeName"),
		},
	}
	pod := newPod("monitoring", name)
	pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = "mig-exporter", ptr(true)
	pod.Spec.HostPID, pod.Spec.HostNetwork = true, true
	for i, mount := range []struct {
		host, in string
		readOnly bool
	}{
		{"/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources", true},
		{"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins", true},
		{"/var/log/containers", "/var/log/containers", true},
		{exporterFiles, "/files", true},
		{controlDir, controlDir, false},
		{"/var/lib/mig-exporter", "/var/lib/mig-exporter", false},
	} {
		volume := "v" + strconv.Itoa(i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: mount.host}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: mount.in,
			ReadOnly: mount.readOnly})
	}
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// keepExporterLog copies the log of the exporter's pod to the other logs.
func (n *node) keepExporterLog() error {
	files, err := filepath.Glob("/var/log/pods/monitoring_mig-exporter-*/*/*.log")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(n.logs, "mig-exporter-"+filepath.Base(file)), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func fromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// get returns the body of a page of the exporter's metrics listener.
func get(path string) ([]byte, error) {
	client := http.Client{Timeout: 5 * time.Second}
	reply, err := client.Get(metricsURL + path)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, reply.Status, body)
	}
	return body, err
}

// nodeDocument is what the tests read of /api/v1/node.
type nodeDocument struct {
	Time time.Time
	Node struct {
		HoldersIncomplete string
		UnmatchedDevices  []struct{ ID string }
		Sources           []struct {
			Name, Error string
			Up          bool
		}
	}
	GPUs []struct {
		UUID         string
		Allocated    *bool
		GPUInstances []struct {
			ID               int
			Profile          string
			Placement        struct{ Start, Size int }
			Allocated        *bool
			ComputeInstances []struct {
				ID   int
				UUID string
			}
		}
	}
}

func readNodeDocument() (*nodeDocument, error) {
	body, err := get("/api/v1/node")
	if err != nil {
		return nil, err
	}
	var document nodeDocument
	return &document, json.Unmarshal(body, &document)
}

// gpuInstance returns the GPU instance at a place of a GPU.
func (d *nodeDocument) gpuInstance(gpu, start int) (id int, migUUIDs []string) {
	for _, instance := range d.GPUs[gpu].GPUInstances {
		if instance.Placement.Start == start {
			for _, compute := range instance.ComputeInstances {
				migUUIDs = append(migUUIDs, compute.UUID)
			}
			return instance.ID, migUUIDs
		}
	}
	panic(fmt.Sprintf("GPU %d has no GPU instance at %d", gpu, start))
}

// scrape returns the families of /metrics.
func scrape() (map[string]*dto.MetricFamily, error) {
	body, err := get("/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(body)
}

// label returns a label of a series.
func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// deviceOf names the device of a series: the UUID of a GPU, with the id of a GPU instance and of a compute instance.
func deviceOf(m *dto.Metric) string {
	device := label(m, "uuid")
	for _, part := range []string{"gpu_instance", "compute_instance"} {
		if id := label(m, part); id != "" {
			device += "/" + id
		}
	}
	return device
}

// holder is a series of one of the *_pod_info families.
type holder struct{ device, namespace, pod, container, workload, team, resource, sharing, confirmed string }

func holdersOf(families map[string]*dto.MetricFamily) []holder {
	var list []holder
	for _, family := range []string{"nvidia_gpu_pod_info", "nvidia_mig_gpu_instance_pod_info",
		"nvidia_mig_compute_instance_pod_info"} {
		for _, m := range families[family].GetMetric() {
			list = append(list, holder{deviceOf(m), label(m, "namespace"), label(m, "pod"), label(m, "container"),
				label(m, "workload"), label(m, "label_team"), label(m, "resource"), label(m, "sharing"),
				label(m, "confirmed")})
		}
	}
	return list
}

// allocatedOf returns the values of the *_allocated families by device.
func allocatedOf(families map[string]*dto.MetricFamily) map[string]float64 {
	values := map[string]float64{}
	for _, family := range []string{"nvidia_gpu_allocated", "nvidia_mig_gpu_instance_allocated",
		"nvidia_mig_compute_instance_allocated"} {
		for _, m := range families[family].GetMetric() {
			values[deviceOf(m)] = m.GetGauge().GetValue()
		}
	}
	return values
}

// migctl runs migctl as root on the exporter's socket.
func (n *node) migctl(ctx context.Context, args ...string) (output string, exit int, err error) {
	c := exec.CommandContext(ctx, filepath.Join(n.programs, "migctl"), args...)
	c.Env = append(os.Environ(), "MIGCTL_ADDRESS=unix://"+controlDir+"/control.sock")
	out, err := c.CombinedOutput()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return string(out), ended.ExitCode(), nil
	}
	return string(out), 0, err
}

func parseMetrics(body []byte) (map[string]*dto.MetricFamily, error) {
	var parser expfmt.TextParser
	return parser.TextToMetricFamilies(bytes.NewReader(body))
}
