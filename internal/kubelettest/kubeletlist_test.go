package kubelettest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const podResourcesSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// listKubelet asks the kubelet itself for its pods, past the exporter.
func listKubelet(ctx context.Context) ([]*podresources.PodResources, error) {
	conn, err := grpc.NewClient("unix://"+podResourcesSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})

	return reply.GetPodResources(), err
}

// awaitKubeletList waits until the kubelet lists more pods than a number, and returns their names.
func (c *cluster) awaitKubeletList(t *testing.T, more int) (names []string) {
	t.Helper()

	if err := await(2*time.Minute, func() error {
		pods, err := listKubelet(c.ctx)
		if err == nil && len(pods) <= more {
			err = fmt.Errorf("the kubelet lists %d pods", len(pods))
		}

		names = nil
		for _, pod := range pods {
			names = append(names, pod.GetNamespace()+"/"+pod.GetName())
		}

		return err
	}); err != nil {
		t.Fatal(err)
	}

	return names
}
