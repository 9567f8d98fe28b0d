package kubelettest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How the pods of TestChurn come and go.
const (
	churnSlots  = 4
	churnRounds = 12
	// A change of the kubelet's list is shown with the poll after it: a second, and the time of a
	// loaded machine.
	churnDelay = 5 * time.Second
)

// life is the truth about one pod of a churn, not by the kubelet: its devices are what the plugin
// told the container, its times are the API server's answers and the container runtime's log.
type life struct {
	pod, owner string
	devices    []string
	created    time.Time // before the API server was asked
	running    time.Time // the container has printed its devices
	deleting   time.Time // before the API server was asked to delete it, or its end
	gone       time.Time // the API server had it no longer
}

// observed is one scrape.
type observed struct {
	from, to  time.Time
	holders   []holder
	allocated map[string]bool
}

// TestChurn: pods under the same names, of other owners each time, come and go, several at a time.
// No scrape shows a device as held by a pod that has not got it, or with another pod's owner; none
// shows a held device as free.
func TestChurn(t *testing.T) {
	c := startShared(t)
	c.awaitHolders(t, nil)
	var lives []life
	var scrapes []observed
	var slots, scraping sync.WaitGroup
	var mu sync.Mutex
	done := make(chan struct{})
	began := time.Now()
	scraping.Go(func() {
		(&watch{done: done}).repeat(100*time.Millisecond, func() {
			from := time.Now()

			families, err := scrape()
			if err != nil {
				t.Error(err)
				return
			}

			scrapes = append(scrapes, observed{from, time.Now(), holdersOf(families), heldDevices(families)})
		})
	})

	for slot := range churnSlots {
		slots.Go(func() {
			for round := range churnRounds {
				l, err := c.liveOnce(slot, round)
				if err != nil {
					t.Errorf("slot %d, round %d: %v", slot, round, err)
					return
				}

				mu.Lock()
				lives = append(lives, l)
				mu.Unlock()
			}
		})
	}

	slots.Wait()
	took := time.Since(began)
	c.awaitHolders(t, nil)
	close(done)
	scraping.Wait()
	checkChurn(t, lives, scrapes)
	record("churn: %d pods in %s, %.0f a minute, %d scrapes", len(lives), took.Round(time.Second),
		float64(len(lives))/took.Minutes(), len(scrapes))
}

// liveOnce creates a pod, waits until it runs and ends or deletes it, and returns what is true of
// it.
func (c *cluster) liveOnce(slot, round int) (life, error) {
	resources := []string{"nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "example.com/gke-vgpu"}
	name := fmt.Sprintf("db-%d", slot)
	owner := fmt.Sprintf("%s-of-%d", name, round)
	pod := ownedBy(newPod("batch", name, newContainer("main", resources[(slot+round)%len(resources)], 1)), "StatefulSet",
		owner)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever

	ends := round%2 == 0
	if ends {
		pod.Spec.Containers[0].Command[3] = "echo devices=$" + allocatedVariable + "; exec busybox sleep 6"
	}

	l := life{pod: name, owner: "StatefulSet/" + owner, created: time.Now()}

	created, err := c.client.CoreV1().Pods("batch").Create(c.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return life{}, err
	}

	err = await(time.Minute, func() error {
		var ids []string
		if ids, l.running, err = givenDevices(created, "main"); err != nil {
			return err
		}

		l.devices = nil
		for _, id := range ids {
			l.devices = append(l.devices, c.devices[id])
		}

		return nil
	})
	if err != nil {
		return life{}, err
	}

	if _, err := c.awaitPod(c.ctx, created, phaseIf(ends)); err != nil {
		return life{}, err
	}

	l.deleting = time.Now()
	if ends {
		l.deleting = l.running.Add(6 * time.Second)
	}

	err = c.deletePod(c.ctx, "batch", name)
	l.gone = time.Now()

	return l, err
}

func phaseIf(ends bool) corev1.PodPhase {
	if ends {
		return corev1.PodSucceeded
	}

	return corev1.PodRunning
}

// checkChurn holds every scrape against the truth.
func checkChurn(t *testing.T, lives []life, scrapes []observed) {
	t.Helper()
	var toHolder, toOwner, toEnd []time.Duration

	for i := range lives {
		l := &lives[i]
		first := time.Time{}
		owned := time.Time{}
		last := time.Time{}

		for _, s := range scrapes {
			shown := slices.ContainsFunc(s.holders, func(h holder) bool { return l.isShownBy(h) })

			described := slices.ContainsFunc(s.holders, func(h holder) bool { return l.isShownBy(h) && h.workload == l.owner })
			if s.to.After(l.created) && s.from.Before(l.gone.Add(churnDelay)) {
				if shown && first.IsZero() {
					first = s.to
				}

				if described && owned.IsZero() {
					owned = s.to
				}

				if described {
					last = s.to
				}
			}

			if s.from.After(l.running.Add(churnDelay)) && s.to.Before(l.deleting) {
				for _, device := range l.devices {
					if held, known := s.allocated[device]; !shown || known && !held {
						t.Errorf("%s: %s of %s is not shown as held by it", s.to.Format(time.StampMilli), device, l.owner)
					}
				}
			}
		}

		if !first.IsZero() {
			toHolder = append(toHolder, first.Sub(l.running))
		}

		if !owned.IsZero() {
			toOwner, toEnd = append(toOwner, owned.Sub(l.running)), append(toEnd, last.Sub(l.gone))
		}
	}

	nameless := 0

	for _, s := range scrapes {
		if slices.ContainsFunc(s.holders, holder.isNameless) {
			nameless++
		}

		for _, h := range s.holders {
			if !isTrue(lives, s, h) {
				t.Errorf("%s: no pod held what is shown: %v, %s", s.to.Format(time.StampMilli), h, h.workload)
			}
		}
	}

	if len(toOwner) != len(lives) {
		t.Errorf("%d of %d pods were shown with their owner", len(toOwner), len(lives))
	}

	record("churn: %d of %d scrapes show a holder without a name, by the checkpoint alone", nameless, len(scrapes))
	recordDurations("churn: a pod's device is shown, after its container's start", toHolder)
	recordDurations("churn: its owner is shown, after its container's start", toOwner)
	recordDurations("churn: it is shown for the last time, after the API server had it no longer", toEnd)
}

// isShownBy reports whether a series says that the pod holds one of its devices.
func (l *life) isShownBy(h holder) bool {
	return h.namespace == "batch" && h.pod == l.pod && slices.Contains(l.devices, h.device)
}

// isTrue reports whether a pod of that name, with that owner if one is shown, had the device at the
// time of a scrape or shortly before. A holder without a name must be unconfirmed: the kubelet's
// checkpoint has the device of a pod that its list does not have yet, or no longer.
func isTrue(lives []life, s observed, h holder) bool {
	return slices.ContainsFunc(lives, func(l life) bool {
		named := l.isShownBy(h) && (h.workload == "" || h.workload == l.owner) &&
			(h.team == "" || strings.EqualFold(h.team, "batch"))
		nameless := h.isNameless() && slices.Contains(l.devices, h.device)

		return (named || nameless) && s.to.After(l.created) && s.from.Before(l.gone.Add(churnDelay))
	})
}

// isNameless reports whether only the kubelet's checkpoint has the holder, which knows no names of
// pods.
func (h holder) isNameless() bool {
	return h.namespace == "" && h.pod == "" && h.container == "main" && h.workload == "" && h.team == "" &&
		h.confirmed == "false"
}
