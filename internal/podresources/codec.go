package podresources

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A few bytes of an encoded reply can take hundreds once decoded, so a limit on the length of a
// reply does not limit memory. We estimate the decoded size from these constants instead. By them
// the reply of a node with 20,000 devices and their topology takes 26 MiB.
const (
	maxDecoded   = 64 << 20
	messageBytes = 192 // a message without its contents
	idBytes      = 768 // a device id, with the assignment that we make of it
	numberBytes  = 16  // a number in a slice that grows
)

// replyCodec is gRPC's protobuf codec with a limit on the memory of a reply, and without its check
// for valid UTF-8. Kubelets up to 1.34 do not check the device ids that they encode
// (gogo/protobuf): one device plugin with invalid ids would otherwise make the whole reply
// unreadable.
type replyCodec struct {
	encoding.CodecV2
}

func newReplyCodec() replyCodec {
	return replyCodec{encoding.GetCodecV2(grpcproto.Name)}
}

// Unmarshal implements encoding.CodecV2.
func (c replyCodec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}

	raw := data.Materialize() // a copy

	size, err := sanitizeAndMeasure(raw, message.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}

	if size > maxDecoded {
		return fmt.Errorf(
			"%d bytes with so many pods and devices that they would take %d MiB, more than %d",
			len(raw),
			size>>20,
			maxDecoded>>20,
		)
	}

	return proto.Unmarshal(raw, message)
}

// sanitizeAndMeasure replaces invalid UTF-8 in all strings of an encoded message, in place, and
// returns the approximate size of the decoded message without the bytes of its strings.
func sanitizeAndMeasure(raw []byte, desc protoreflect.MessageDescriptor) (size int, err error) {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}

		length := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if length < 0 {
			return 0, protowire.ParseError(length)
		}

		value := raw[n : n+length]
		raw = raw[n+length:]

		fd := desc.Fields().ByNumber(num)
		if fd == nil {
			continue // an unknown field stays encoded
		}

		if typ != protowire.BytesType {
			size += numberBytes
			continue
		}

		content, _ := protowire.ConsumeBytes(value)

		switch fd.Kind() {
		case protoreflect.StringKind:
			replaceInvalidUTF8(content)

			// In this API only device ids are lists of strings. A single string is a field of its
			// message, so messageBytes covers it.
			if fd.IsList() {
				size += idBytes
			}
		case protoreflect.MessageKind:
			contentSize, err := sanitizeAndMeasure(content, fd.Message())
			if err != nil {
				return 0, err
			}

			size += messageBytes + contentSize
		default: // packed numbers of at least a byte each
			size += numberBytes * len(content)
		}
	}

	return size, nil
}

// replaceInvalidUTF8 replaces each byte that is not valid UTF-8 by a question mark. The length
// stays, so that the encoded message remains valid.
func replaceInvalidUTF8(s []byte) {
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		if r == utf8.RuneError && size == 1 {
			s[0] = '?'
		}

		s = s[size:]
	}
}
