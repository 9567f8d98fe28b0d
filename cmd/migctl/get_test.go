package main

import (
	"net/http"
	"strings"
	"testing"
)

// The documents are those of mig-exporter for its simulated nodes, axes of 8 (A100) and 4 (A30) slices; sick.json and
// rtxpro.json are made by hand: everything that can be missing or wrong, and an axis of 12.
var nodes = []string{"dgx-a100-mixed", "a30", "mps-and-timeslicing", "sick", "rtxpro"}

func TestGetDrawsTheNode(t *testing.T) {
	for _, name := range nodes {
		t.Run(name, func(t *testing.T) {
			_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-"+name+".json")})
			got := runner{}.run(t, address, "get")
			got.expectGolden(t, "get-"+name+".txt")
			wide := runner{}.run(t, address, "get", "-o", "wide")
			golden(t, "get-"+name+".wide.txt", wide.out)
			ascii := runner{env: map[string]string{"LANG": "C"}}.run(t, address, "get")
			if i := strings.IndexFunc(ascii.out, func(r rune) bool { return r > 126 }); i >= 0 {
				t.Errorf("not ASCII: %s", ascii.out[i:])
			}
			fits(t, ascii.out)
			golden(t, "get-"+name+".ascii.txt", ascii.out)
		})
	}
}
