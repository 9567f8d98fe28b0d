package podres

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// encodeBadUTF8 is a valid reply, but that the bytes of one device id are replaced after it was encoded, as a kubelet
// with gogo/protobuf passes them on.
func encodeBadUTF8(t testing.TB) []byte {
	t.Helper()
	in := reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", "XXXX", gpuA))))
	encoded, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.Replace(string(encoded), "XXXX", "a\xff\xfeb", 1))
}

func decode(data []byte) (*podresources.ListPodResourcesResponse, error) {
	out := &podresources.ListPodResourcesResponse{}
	return out, newLenientCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, out)
}

func TestCodecReplacesInvalidUTF8(t *testing.T) {
	data := encodeBadUTF8(t)
	if err := proto.Unmarshal(data, &podresources.ListPodResourcesResponse{}); err == nil {
		t.Fatal("the strict decoder accepts it: nothing is tested here")
	}
	got, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	want := reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", "a\uFFFDb", gpuA))))
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCodecKeepsUnknownFields(t *testing.T) {
	data := protowire.AppendTag(encodeBadUTF8(t), 99, protowire.BytesType)
	data = protowire.AppendBytes(data, []byte{0xff})
	data = protowire.AppendTag(data, 98, protowire.VarintType)
	data = protowire.AppendVarint(data, 7)
	got, err := decode(data)
	if err != nil || len(got.GetPodResources()) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCodecRefusesGarbage(t *testing.T) {
	for _, data := range []string{"\xff", "\x0a\xff", "\x0a\x05ab", string(encodeBadUTF8(t)[:20])} {
		if got, err := decode([]byte(data)); err == nil {
			t.Errorf("%q was decoded: %v", data, got)
		}
	}
}

func FuzzCodec(f *testing.F) {
	f.Add(encodeBadUTF8(f))
	f.Add([]byte("\x0a\x05ab"))
	f.Fuzz(func(t *testing.T, data []byte) {
		strict := &podresources.ListPodResourcesResponse{}
		strictErr := proto.Unmarshal(data, strict)
		got, err := decode(data)
		if strictErr == nil && (err != nil || !proto.Equal(got, strict)) {
			t.Errorf("%q: got %v, %v, want %v", data, got, err, strict)
		}
		if err == nil {
			if _, err := proto.Marshal(got); err != nil {
				t.Errorf("%q was decoded to what cannot be encoded: %v", data, err)
			}
		}
	})
}
