package migctl

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestProfiles(t *testing.T) {
	for _, name := range []string{"dgx-a100-mixed", "rtxpro", "sick"} {
		_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-"+name+".json")})

		got := runner{}.run(t, address, "profiles")
		if got.code != exitOK {
			t.Fatalf("exit code %d: %s", got.code, got.err)
		}

		fits(t, got.out)
		golden(t, "profiles-"+name+".txt", got.out)
		one := runner{}.run(t, address, "profiles", "1", "-o", "yaml")
		cmptest.Equal(t, name+": GPUs in the answer for GPU 1", strings.Count(one.out, "index: "), 1)

		if name != "sick" {
			cmptest.HasTexts(t, one.out, "placements:")
		}
	}
}

func TestOperations(t *testing.T) {
	routes := applied()
	_, address := serve(t, routes)
	list := runner{}.run(t, address, "operations")
	one := runner{}.run(t, address, "operations", "op-20260304-1")
	fits(t, list.out+one.out)
	golden(t, "operations.txt", list.out)
	golden(t, "operation.txt", one.out)

	if got := (runner{}).run(t, address, "operations", "op-20260304-1", "-o", "json"); !strings.Contains(got.out,
		`"verb": "apply"`) {
		t.Errorf("%+v", got)
	}

	if got := (runner{}).run(t, address, "operations", "--follow"); got.code != exitUsage {
		t.Errorf("--follow without an operation: %+v", got)
	}

	if got := (runner{}).run(t, address, "operations", "../node"); got.code != exitFailed ||
		!strings.Contains(got.err, "Not found") {
		t.Errorf("an id that is a path: %+v", got) // it is escaped, and leads nowhere else
	}

	_, empty := serve(t,
		map[string]http.HandlerFunc{"GET /operations": answer(api.Operations{Operations: []api.Operation{}})})
	if got := (runner{}).run(t, empty, "operations"); got.out != "No operations yet.\n" {
		t.Errorf("%+v", got)
	}
}

// TestOperationsWhileRecovering: an empty list right after a start does not mean that there are
// none.
func TestOperationsWhileRecovering(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{
		"GET /operations": answer(api.Operations{State: "running", Recovering: true, Operations: []api.Operation{}})})
	got := runner{}.run(t, address, "operations")
	fits(t, got.out)
	cmptest.HasTexts(t, flat(got.out), "is finishing what its last run left: operations may be missing here")
	cmptest.LacksTexts(t, got.out, "No operations yet")
}

func TestLayouts(t *testing.T) {
	layouts := api.NamedLayouts{APIVersion: api.Version, Layouts: []api.NamedLayout{
		{Name: "all-disabled", Rules: []api.LayoutRule{{Devices: api.DeviceList{All: true}}}, Applies: []gpu.UUID{gpu2}},
		{Name: "all-1g.10gb", BuiltIn: true, Applies: []gpu.UUID{gpu2}, Rules: []api.LayoutRule{{
			Devices: api.DeviceList{All: true}, DeviceFilter: api.Strings{"0x20B010DE", "0x20B110DE"}, MIGEnabled: true,
			MIGDevices: map[string]int{"1g.10gb": 4}}}},
		{Name: "all-balanced", Rules: []api.LayoutRule{
			{Devices: api.DeviceList{All: true}, DeviceFilter: api.Strings{"0x20B010DE", "0x233010DE"}, MIGEnabled: true,
				MIGDevices: map[string]int{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}},
			{Devices: api.DeviceList{Indexes: []int{0, 1, 7}}, MIGEnabled: true},
		}},
	}}
	_, address := serve(t, map[string]http.HandlerFunc{"GET /layouts": answer(layouts)})
	got := runner{}.run(t, address, "layouts")
	fits(t, got.out)
	golden(t, "layouts.txt", got.out)
}

func TestGPUsAreNamedByIndexUUIDOrBusID(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-rtxpro.json")})
	for word, want := range map[string]string{
		"0": "GPU 0", "1": "GPU 1", "00000000:3D:00.0": "GPU 1", "0000:3d:00.0": "GPU 1", "3d:00.0": "GPU 1",
		"gpu-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a000": "GPU 0",
	} {
		got := runner{}.run(t, address, "get", word)
		cmptest.Equal(t, word+": exit code", got.code, exitOK)
		cmptest.Equal(t, word+": GPUs", strings.Count(got.out, "GPU "), 1)
		cmptest.HasTexts(t, got.out, want)

		document := runner{}.run(t, address, "get", word, "-o", "json")
		if strings.Count(document.out, `"pciBusId"`) != 1 || !strings.Contains(document.out, `"hostname": "rtx-pro-6"`) {
			t.Errorf("%s: %s", word, document.out)
		}
	}

	ambiguous := runner{}.run(t, address, "get", "GPU-0a6d6b1e")
	cmptest.Equal(t, "exit code", ambiguous.code, exitUsage)
	cmptest.HasTexts(t, flat(ambiguous.err), `"GPU-0a6d6b1e" is the beginning of 2 UUIDs, give more of it: GPU-0a6d6b1e`)

	for _, word := range []string{"2", "00", "GPU-1", "0001:3d:00.0", "x"} {
		if got := (runner{}).run(t, address, "get", word); got.code != exitUsage || !strings.Contains(got.err, "has no GPU") {
			t.Errorf("%s: %+v", word, got)
		}
	}
}

func TestColoursOnlyWhereTheyAreWanted(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-sick.json")})
	for name, c := range map[string]struct {
		terminal bool
		env      map[string]string
		args     []string
		want     bool
	}{
		"terminal":              {terminal: true, want: true},
		"pipe":                  {},
		"NO_COLOR":              {terminal: true, env: map[string]string{"NO_COLOR": "1"}},
		"empty NO_COLOR":        {terminal: true, env: map[string]string{"NO_COLOR": ""}, want: true},
		"dumb":                  {terminal: true, env: map[string]string{"TERM": "dumb"}},
		"always beats NO_COLOR": {env: map[string]string{"NO_COLOR": "1"}, args: []string{"--color=always"}, want: true},
		"never":                 {terminal: true, args: []string{"--color=never"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := utf8Env()
			for k, v := range c.env {
				env[k] = v
			}

			got := runner{terminal: c.terminal, env: env}.run(t, address, append(c.args, "get")...)
			if strings.Contains(got.out, "\x1b[") != c.want {
				t.Errorf("%q", got.out)
			}

			if !c.want && strings.ContainsRune(got.out, '\x1b') {
				t.Error("an escape that came from the server")
			}
		})
	}

	colored := runner{terminal: true}.run(t, address, "get")
	golden(t, "get-sick.color.txt", colored.out)

	plain := runner{}.run(t, address, "get")
	if stripped := stripColor(colored.out); stripped != plain.out {
		t.Errorf("colours change the text:\n%s", stripped)
	}
}

func stripColor(s string) string {
	for {
		before, rest, ok := strings.Cut(s, "\x1b[")
		if !ok {
			return s
		}

		_, after, _ := strings.Cut(rest, "m")
		s = before + after
	}
}
