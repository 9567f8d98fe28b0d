package truth

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

var nodes = flag.Int("nodes", 12, "nodes to evaluate")

// evaluateAll evaluates generated nodes, on all processors.
func evaluateAll(seed uint64, count int) []*result {
	results := make([]*result, count)
	next := make(chan int)
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				results[i] = evaluate(newNode(seed, i))
			}
		})
	}
	for i := range results {
		next <- i
	}
	close(next)
	wait.Wait()
	return results
}

func TestQuick(t *testing.T) {
	began := time.Now()
	var all tally
	all.list = evaluateAll(1, *nodes)
	fmt.Println(time.Since(began))
	all.print()
}

type tally struct{ list []*result }

func (t *tally) add(r *result) { t.list = append(t.list, r) }

func (t *tally) print() {
	n := 0
	for _, res := range t.list {
		for _, s := range res.subjects {
			n++
			for way := range ways {
				c := s.answers[way]
				if c == nil || way == naively {
					continue
				}
				if s.harms(c) || way < 2 && c.real.stretch.quantile(0.95) > s.report[way].Predicted.StretchP95.High*1.006 {
					fmt.Printf("%s gpu %d way %d %s/%s %s: oom %v engine %v thr %.3f worst %.2f p95 %.2f pred %+v busy99 %.2f max10 %.2f first %d noticed %v chg %d\n",
						res.node.model.Name, s.gpu, way, s.work.kind, s.work.mix, c.profile.Name, s.next.outOfMemory(c.profile), lacks(c.profile, s.next.media),
						c.real.throughput(), c.real.worstHour, c.real.stretch.quantile(0.95), s.report[way].Predicted.StretchP95,
						s.report[way].Evidence.BusyP99, s.report[way].Evidence.Busy10Minutes, c.real.firstLoss, s.noticed, s.work.changes)
				}
			}
		}
	}
	var rec, harm, recall, past [ways]int
	var oracleAll, oraclePast, flaps int
	for _, res := range t.list {
		for _, s := range res.subjects {
			all, pst := s.best(s.knowsAll), s.best(s.knowsPast)
			if all != nil {
				oracleAll++
			}
			if pst != nil {
				oraclePast++
			}
			flaps += s.flaps
			for way := range ways {
				if c := s.answers[way]; c != nil {
					rec[way]++
					if s.harms(c) {
						harm[way]++
					}
					if all != nil {
						recall[way]++
					}
					if pst != nil {
						past[way]++
					}
				}
			}
		}
	}
	fmt.Println("subjects", n, "recommended", rec, "harmed", harm, "of oracle all", recall, oracleAll, "past", past, oraclePast, "flaps", flaps)
}
