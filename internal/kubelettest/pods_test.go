package kubelettest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newPod returns a pod that is bound to the node, as the scheduler would have done.
func newPod(namespace, name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"team": namespace}},
		Spec: corev1.PodSpec{
			NodeName: nodeName, Containers: containers, TerminationGracePeriodSeconds: ptr(int64(1)),
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: ptr(false), EnableServiceLinks: ptr(false),
		},
	}
}

// ownedBy adds the controller of a pod.
func ownedBy(pod *corev1.Pod, kind, name string) *corev1.Pod {
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: kind, Name: name, UID: "5b0f5b8e-0000-4000-8000-000000000001", Controller: ptr(true),
	}}

	return pod
}

// newContainer returns a container that prints which devices it was given and stays, with devices
// of a resource if that is not empty.
func newContainer(name, resourceName string, count int64) corev1.Container {
	c := corev1.Container{
		Name: name, Image: podImage, ImagePullPolicy: corev1.PullNever,
		Command: []string{"/bin/busybox", "sh", "-c", "echo devices=$" + allocatedVariable + "; exec busybox sleep infinity"},
	}
	if resourceName != "" {
		c.Resources.Limits = corev1.ResourceList{
			corev1.ResourceName(resourceName): *resource.NewQuantity(count, resource.DecimalSI),
		}
	}

	return c
}

func ptr[T any](v T) *T { return &v }

// givenDevices returns the device ids that a container has printed when it started, and when that
// was by the container runtime's clock.
func givenDevices(pod *corev1.Pod, container string) (ids []string, at time.Time, err error) {
	path := filepath.Join("/var/log/pods", pod.Namespace+"_"+pod.Name+"_"+string(pod.UID), container, "0.log")

	f, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()

	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// 2026-01-02T15:04:05.999999999Z stdout F text
		fields := strings.SplitN(lines.Text(), " ", 4)
		if len(fields) == 4 {
			if text, ok := strings.CutPrefix(fields[3], "devices="); ok {
				at, err = time.Parse(time.RFC3339Nano, fields[0])

				if text != "" {
					ids = strings.Split(text, ",")
				}

				return ids, at, err
			}
		}
	}

	return nil, time.Time{}, fmt.Errorf("%s: the container has printed no devices", path)
}

// touch creates a file in a volume of a pod of the type emptyDir.
func (c *cluster) touch(t *testing.T, pod *corev1.Pod, volume, name string) {
	t.Helper()

	path := filepath.Join("/var/lib/kubelet/pods", string(pod.UID), "volumes/kubernetes.io~empty-dir", volume, name)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeStaticPod writes a pod to the folder of static pods until the test ends, and waits until the
// API server shows that it runs.
func (c *cluster) writeStaticPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()

	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(staticPods, pod.Name+".json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}

	mirror := pod.DeepCopy()
	mirror.Name += "-" + nodeName
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}

		if err := await(time.Minute, func() error {
			_, err := c.client.CoreV1().Pods(mirror.Namespace).Get(c.ctx, mirror.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}

			return fmt.Errorf("static pod %s is not gone: %w", mirror.Name, err)
		}); err != nil {
			t.Error(err)
		}
	})

	running, err := c.awaitPod(c.ctx, mirror, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}

	return running
}
