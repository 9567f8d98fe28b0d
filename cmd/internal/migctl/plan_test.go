package migctl

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

func counted(extra ...string) []string {
	return append([]string{"plan", "--gpus", "2", "--devices", "2g.10gb=1,1g.5gb=1"}, extra...)
}

func TestPlanShowsADiff(t *testing.T) {
	f, address := serve(t, applied())
	got := runner{}.run(t, address, counted("--force", string(trainer), "--take-over")...)
	got.expectGolden(t, "plan.txt")
	asked := f.requests("POST /plans")

	want := `{"spec":{"gpus":["2"],"devices":{"1g.5gb":1,"2g.10gb":1}},"force":["` + string(trainer) +
		`"],"takeOver":true}`
	if len(asked) != 1 || asked[0].body != want {
		t.Errorf("asked %+v, want the body %s", asked, want)
	}

	ascii := runner{env: map[string]string{"LC_ALL": "POSIX", "LANG": "C.UTF-8"}}.run(t, address, counted()...)
	golden(t, "plan.ascii.txt", ascii.out)
	colored := runner{}.run(t, address, counted("--color=always")...)
	golden(t, "plan.color.txt", colored.out)

	for _, form := range []string{"json", "yaml"} {
		document := runner{}.run(t, address, counted("-o", form)...)
		golden(t, "plan."+form, document.out)
	}
}

func TestPlanOfWhatStandsAlready(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": answer(nothingToDo())})
	got := runner{}.run(t, address, counted()...)
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.HasTexts(t, got.out, "Nothing to do")
	cmptest.LacksTexts(t, got.out, "To do this")
	golden(t, "plan-nothing.txt", got.out)

	if got := (runner{}).run(t, address, "apply", "--gpus", "2", "--devices", "none"); got.code != exitOK ||
		got.err != "" {
		t.Errorf("apply: exit code %d, %s", got.code, got.err) // no question if there is nothing to do
	}
}

func TestSpecs(t *testing.T) {
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "spec.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		return name
	}

	parted := "version: v1\nmig-configs:\n  all-1g:\n    - devices: all\n      mig-enabled: true\n      mig-devices: " +
		"{1g.5gb: 7}\n"
	for name, c := range map[string]struct {
		args []string
		in   string
		want string // of the spec; with a leading ! of the error
	}{
		"counts": {args: []string{"--gpus=0,all", "--devices=19=7"},
			want: `{"gpus":["0","all"],"devices":{"19":7}}`},
		"no instances": {args: []string{"--gpus=0", "--devices=none"}, want: `{"gpus":["0"],"devices":{}}`},
		"demand": {args: []string{"--demand=memory=12GiB,sms=20,count=3", "--demand", "sms=5"},
			want: `{"demand":[{"memory":12884901888,"sms":20,"count":3},{"sms":5,"count":1}]}`},
		"layout": {args: []string{"--layout=all-1g"}, want: `{"layout":"all-1g"}`},
		"a file": {args: []string{"-f",
			write("gpus: [GPU-00811850-bd8c-5ae1-96ad-c6abb1e0f5e7]\ndevices: {3g.20gb: {count: 1, compute: [1c, 2c]}}\n")},
			want: `{"gpus":["GPU-00811850-bd8c-5ae1-96ad-c6abb1e0f5e7"],"devices":{"3g.20gb":{"count":1,"compute":["1c","2c"]}}}`},
		"standard input": {args: []string{"-f", "-"}, in: `{"layout": "x"}`, want: `{"layout":"x"}`},
		"a file's layout": {args: []string{"-f", write(parted), "--layout", "all-1g"},
			want: `{"layout":"all-1g","version":"v1","mig-configs":{"all-1g":[{"devices":"all","mig-enabled":true,"mig-devices":{"1g.5gb":7}}]}}`},
		"a mistake in a file with a chosen layout": {args: []string{"-f", write("\n\n\n" + parted + "gpu: []\n"),
			"--layout", "all-1g"}, want: "!line 10: gpu: is not known here"},
		"unknown key":       {args: []string{"-f", write("gpus: [0]\ndevises: {}\n")}, want: "!devises"},
		"no file":           {args: []string{"-f", "/no/such/file"}, want: "!no such file"},
		"nothing":           {want: "!the wanted layout is missing"},
		"devices alone":     {args: []string{"--devices=1g.5gb=1"}, want: "!--devices needs --gpus"},
		"gpus alone":        {args: []string{"--gpus=0"}, want: "!--gpus needs --devices"},
		"bad count":         {args: []string{"--gpus=0", "--devices=1g.5gb=x"}, want: "!expected each profile once"},
		"bad need":          {args: []string{"--demand=mem=1"}, want: "!memory=12GiB"},
		"two forms":         {args: []string{"--layout=a", "--demand=sms=1"}, want: "!choose one"},
		"a file and flags":  {args: []string{"-f", "-", "--gpus=0"}, want: "!whole spec"},
		"unreadable number": {args: []string{"--demand=memory=much"}, want: "!memory"},
		"no unit":           {args: []string{"--demand=memory=12"}, want: `!memory is "12"; expected a whole number with its unit, such as 12GiB`},
		"unknown unit":      {args: []string{"--demand=memory=12G"}, want: `!memory is "12G"; expected a whole number with its unit`},
	} {
		t.Run(name, func(t *testing.T) {
			f, address := serve(t, map[string]http.HandlerFunc{"POST /plans": answer(nothingToDo())})
			got := runner{in: c.in}.run(t, address, append([]string{"plan"}, c.args...)...)
			asked := f.requests("")

			if wrong, ok := strings.CutPrefix(c.want, "!"); ok {
				cmptest.Equal(t, "exit code", got.code, exitUsage)
				cmptest.HasTexts(t, flat(got.err), wrong)
				cmptest.Equal(t, "requests", len(asked), 0)

				return
			}

			cmptest.Equal(t, "exit code", got.code, exitOK)
			cmptest.Equal(t, "asked", asked, []request{{line: "POST /plans", body: `{"spec":` + c.want + `}`}})
		})
	}
}

func TestInfeasible(t *testing.T) {
	problem := api.Problem{
		Type: api.Infeasible, Title: "It does not fit", Status: 422,
		Detail: "1 of 2 x 3g.20gb fits on GPU 2 without destroying what is in use.",
		Blocking: []api.Blocker{{GPU: gpu2, Instance: string(trainer), Profile: "3g.20gb", Placement: at(0, 4),
			Holders: holds()}},
	}
	_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": refuse(problem)})

	got := runner{}.run(t, address, counted()...)
	if got.code != exitFailed || got.out != "" {
		t.Errorf("exit code %d, output %q", got.code, got.out)
	}

	fits(t, got.err)
	golden(t, "infeasible.txt", got.err)
}
