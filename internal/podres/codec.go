package podres

import (
	"bytes"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// lenientCodec is gRPC's protobuf codec, but for strings that are not valid UTF-8: it replaces what is wrong in them.
// Kubelets up to 1.34 encode without looking (gogo/protobuf) and pass device ids on as they got them; one device plugin
// that hands out bytes would otherwise cost the whole reply.
type lenientCodec struct {
	encoding.CodecV2
}

func newLenientCodec() lenientCodec {
	return lenientCodec{encoding.GetCodecV2(grpcproto.Name)}
}

// Unmarshal implements encoding.CodecV2.
func (c lenientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	message, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	repaired, repairErr := repairUTF8(data.Materialize(), message.ProtoReflect().Descriptor())
	if repairErr != nil {
		return err
	}
	return proto.Unmarshal(repaired, message)
}

// repairUTF8 replaces invalid UTF-8 in the string fields of an encoded message and of those within it.
func repairUTF8(in []byte, desc protoreflect.MessageDescriptor) ([]byte, error) {
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		num, typ, n := protowire.ConsumeTag(in)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(num, typ, in[n:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		field, value := in[:n+size], in[n:n+size]
		in = in[n+size:]
		fd := desc.Fields().ByNumber(num)
		if typ != protowire.BytesType || fd == nil {
			out = append(out, field...)
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		switch fd.Kind() {
		case protoreflect.StringKind:
			content = bytes.ToValidUTF8(content, []byte("\uFFFD"))
		case protoreflect.MessageKind:
			var err error
			if content, err = repairUTF8(content, fd.Message()); err != nil {
				return nil, err
			}
		}
		out = protowire.AppendTag(out, num, typ)
		out = protowire.AppendBytes(out, content)
	}
	return out, nil
}
