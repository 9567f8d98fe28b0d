package fleet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// reasonsIn returns the values of the constants Reason... that the package in a folder declares.
func reasonsIn(t *testing.T, folder string) (reasons []advise.Reason) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}

		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
				return true
			}

			if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
				value, _ := strconv.Unquote(literal.Value)
				reasons = append(reasons, advise.Reason(value))
			}

			return true
		})
	}

	return reasons
}

// TestReasonsThatAreUnknown: each reason says either that it is not known whether a slice would do, or that
// none would, or is to be.
func TestReasonsThatAreUnknown(t *testing.T) {
	unknown := map[advise.Reason]bool{
		advise.ReasonNone: false, advise.ReasonOptedOut: false, advise.ReasonNoMIG: false, advise.ReasonShared: false,
		advise.ReasonMultiGPU: false, advise.ReasonModePending: false, advise.ReasonNVLink: false,
		advise.ReasonGraphics: false, advise.ReasonMemory: false, advise.ReasonMedia: false, advise.ReasonStretch: false,
		advise.ReasonLatency: false, advise.ReasonBusy: false, advise.ReasonThroughput: false,
		advise.ReasonSingleStrategy: false, advise.ReasonNoGain: false,
		ReasonFree: false, ReasonMIGMode: false,

		// Of slices alone.
		advise.ReasonSaturated: false, advise.ReasonBandwidth: false, advise.ReasonMemoryFull: false,
		advise.ReasonNotUp: false,

		// With these reasons followAdvice takes a slice.
		advise.ReasonProvisional: false, advise.ReasonMediaNotChecked: false,

		advise.ReasonLittleEvidence: true, advise.ReasonLowCoverage: true, advise.ReasonHoldersUnknown: true,
		advise.ReasonNoActivity: true, advise.ReasonNoBusyTime: true, advise.ReasonMemoryUnread: true,
		advise.ReasonNVLinkUnread: true, advise.ReasonGraphicsUnread: true, advise.ReasonPreallocated: true,
		advise.ReasonStartUnseen: true,
		ReasonModelUnknown:       true, ReasonModelChanged: true, ReasonNoHistory: true, ReasonGone: true,
		ReasonReplicasDiffer: true,
	}

	for _, folder := range []string{".", "../advise"} {
		reasons := reasonsIn(t, folder)
		if len(reasons) < 7 {
			t.Errorf("%s has %d reasons: %s", folder, len(reasons), reasons)
		}

		for _, reason := range reasons {
			want, ok := unknown[reason]
			if !ok {
				t.Errorf("%s: is it unknown whether a slice would do? Add it to the table", reason)
			}

			if got := IsUnknown(reason); got != want {
				t.Errorf("%s: unknown is %t, want %t", reason, got, want)
			}
		}
	}
}
