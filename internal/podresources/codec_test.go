package podresources

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// encodeBadUTF8 is a valid reply, but that the bytes of one device id are replaced after it was
// encoded, as a kubelet with gogo/protobuf passes them on.
func encodeBadUTF8(t testing.TB) []byte {
	t.Helper()
	in := reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", "XXXX", gpuA))))

	encoded, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}

	return []byte(strings.Replace(string(encoded), "XXXX", "a\xff\xfeb", 1))
}

func decode(data []byte) (*kubeletapi.ListPodResourcesResponse, error) {
	out := &kubeletapi.ListPodResourcesResponse{}
	return out, newReplyCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, out)
}

func TestCodecReplacesInvalidUTF8(t *testing.T) {
	data := encodeBadUTF8(t)
	if err := proto.Unmarshal(data, &kubeletapi.ListPodResourcesResponse{}); err == nil {
		t.Fatal("the strict decoder accepts it: nothing is tested here")
	}

	got, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}

	want := reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", "a??b", gpuA))))
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

func TestCodecRefusesWhatTakesTooMuchMemory(t *testing.T) {
	many := func(wrap func([]byte) []byte, element []byte) []byte {
		return wrap(bytes.Repeat(element, (maxReply-100)/len(element)))
	}
	field := func(num protowire.Number) func([]byte) []byte {
		return func(content []byte) []byte {
			return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), content)
		}
	}
	inContainer := func(content []byte) []byte { return field(1)(field(3)(content)) }

	none := func(content []byte) []byte { return content }
	for name, data := range map[string][]byte{
		"empty pods":    many(none, field(1)(nil)),
		"small pods":    many(none, field(1)(field(1)([]byte("p")))),
		"containers":    many(field(1), field(3)(nil)),
		"devices":       many(inContainer, field(2)(nil)),
		"device ids":    many(func(ids []byte) []byte { return inContainer(field(2)(ids)) }, field(2)(nil)),
		"packed CPUs":   inContainer(field(3)(make([]byte, maxReply/2))),
		"unpacked CPUs": many(inContainer, protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 1)),
	} {
		if _, err := decode(data); err == nil || !strings.Contains(err.Error(), "MiB") {
			t.Errorf("%d bytes of %s: %v, want a refusal", len(data), name, err)
		}
	}

	large := manyDevices(20_000)
	for _, pod := range large.PodResources {
		for _, d := range pod.Containers[0].Devices {
			d.Topology = &kubeletapi.TopologyInfo{Nodes: []*kubeletapi.NUMANode{{ID: 1}}}
		}
	}

	data, err := proto.Marshal(large)
	if err != nil {
		t.Fatal(err)
	}

	if got, err := decode(data); err != nil || !proto.Equal(got, large) {
		t.Errorf("20,000 devices: %v", err)
	}
}

func FuzzCodec(f *testing.F) {
	f.Add(encodeBadUTF8(f))
	f.Add([]byte("\x0a\x05ab"))
	f.Fuzz(func(t *testing.T, data []byte) {
		strict := &kubeletapi.ListPodResourcesResponse{}
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

func BenchmarkDecode20000(b *testing.B) {
	data, err := proto.Marshal(manyDevices(20_000))
	if err != nil {
		b.Fatal(err)
	}

	b.ReportAllocs()

	for b.Loop() {
		if _, err := decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
