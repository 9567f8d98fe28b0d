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
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The exporter's listeners. Its pod's address is in /etc/hosts under exporterHost, as a cluster's
// DNS has those of a Service.
const (
	exporterHost   = "mig-exporter." + chartNamespace
	metricsURL     = "http://" + exporterHost + ":9401"
	controlAddress = exporterHost + ":9402"
	controlDir     = "/run/mig-exporter"
)

// controlConfig is that of docs/deploy-kubernetes.md.
const controlConfig = `tls: {cert_file: tls.crt, key_file: tls.key}
kubernetes: true
`

// startExporter starts mig-exporter in the pod of the chart's DaemonSet, with what
// values/control.yaml asks for: the pod as it is rendered, but for arguments of these tests.
func (n *node) startExporter(ctx context.Context) (*corev1.Pod, error) {
	files := map[string][]byte{"control.yaml": []byte(controlConfig)}

	for key, file := range map[string]string{
		"tls.crt": n.pki.certFile("control"), "tls.key": n.pki.keyFile("control"),
	} {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}

		files[key] = content
	}

	_, err := n.client.CoreV1().Secrets(chartNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "mig-exporter-control"}, Data: files,
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}

	return n.createExporter(ctx, "x7k2p", usualArgs...)
}

// usualArgs are the exporter's arguments in most tests, whose device plugins are no pods.
var usualArgs = []string{"--control.device-plugin="}

// createExporter creates the exporter's pod, with further arguments of a test.
func (n *node) createExporter(ctx context.Context, suffix string, args ...string) (*corev1.Pod, error) {
	// The node is in a PID namespace of its own, which has all of its processes.
	args = append(args, "--control.mode=apply", "--control.idle-for=0s", "--kubernetes.resource-name=example.com/*",
		"--kubernetes.pod-label=team", "--collectors=+process", "--pid-namespace=host")
	pod := n.installed[0].pod(suffix, args...)
	// The simulated node outlives its driver's clients, as a real one does.
	c := &pod.Spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{Name: "MIG_SIM_STATE", Value: "/var/lib/mig-exporter/simulated-node"})

	pod, err := n.createPod(ctx, pod)
	if err != nil {
		return nil, err
	}

	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", pod.Status.PodIP, exporterHost)

	return pod, os.WriteFile("/etc/hosts", []byte(hosts), 0o644)
}

// keepExporterLog copies the log of the exporter's pod to the other logs.
func (n *node) keepExporterLog() error {
	files, err := filepath.Glob("/var/log/pods/" + chartNamespace + "_mig-exporter-*/*/*.log")
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

// get returns the body of a page of the exporter's metrics listener.
func get(path string) ([]byte, error) { return getURL(metricsURL + path) }

func getURL(url string) ([]byte, error) {
	client := http.Client{Timeout: 5 * time.Second}

	reply, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()

	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, reply.Status, body)
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

// deviceOf names the device of a series: the UUID of a GPU, with the id of a GPU instance and of a
// compute instance.
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
