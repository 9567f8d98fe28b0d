package migctl

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestRecommendShowsEngines: the answer says how many media engines are used, how many are needed,
// and how many the profile has; a refusal, that no profile has enough.
func TestRecommendShowsEngines(t *testing.T) {
	some := wholeH100(t, 0, tiny, podOf("video", "thumbnails-0", "StatefulSet/thumbnails"))
	some.Readings.Media.Decoder, some.Readings.Media.JPEG = gpu.Some(1.7/7), gpu.Some(0.2)
	most := wholeH100(t, 1, tiny, podOf("video", "transcode-0", "StatefulSet/transcode"))
	most.Readings.Media.Decoder = gpu.Some(5. / 7)
	report, s := observedWith(advise.DefaultOptions(), 8*24*time.Hour, func(int) {}, some, most)

	_, address := serve(t, recommended(report, s))
	for name, arg := range map[string]string{"engines-slice": "0", "engines-keep": "1"} {
		got := runner{}.run(t, address, "recommend", "--explain="+arg)
		fits(t, got.out)
		golden(t, "recommend-explain-"+name+".txt", got.out)
	}
}
