package web

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
)

// coding is an HTTP content coding.
type coding string

const (
	codingIdentity coding = "identity"
	codingGzip     coding = "gzip"
)

// negotiateCoding chooses the coding of an answer by Accept-Encoding (RFC 9110, 12.5.3): gzip if
// the client accepts it and its weight is at least identity's, and identity otherwise, even if the
// client excludes both, as servers may.
func negotiateCoding(h http.Header) coding {
	const unset = -1.0
	gzipQ := unset
	identityQ := unset
	anyQ := unset

	for _, line := range h.Values("Accept-Encoding") {
		for spec := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(spec, ";")
			q := quality(params)

			switch strings.ToLower(strings.TrimSpace(name)) {
			case "gzip", "x-gzip":
				gzipQ = q
			case "identity":
				identityQ = q
			case "*":
				anyQ = q
			}
		}
	}

	if gzipQ == unset {
		gzipQ = anyQ
	}

	if gzipQ > 0 && gzipQ >= identityQ {
		return codingGzip
	}

	return codingIdentity
}

// quality returns the q parameter of a header's element: 1 if there is none, 0 if it is invalid.
func quality(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(param, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "q") {
			continue
		}

		q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || !(q >= 0 && q <= 1) { // so that NaN is invalid, too
			return 0
		}

		return q
	}

	return 1
}

// writeEncoded writes the parts of an encoded body, with the headers about its coding and length.
func writeEncoded(w http.ResponseWriter, c coding, parts ...[]byte) {
	header := w.Header()
	header.Add("Vary", "Accept-Encoding")

	if c != codingIdentity {
		header.Set("Content-Encoding", string(c))
	}

	length := 0
	for _, part := range parts {
		length += len(part)
	}

	header.Set("Content-Length", strconv.Itoa(length))

	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return // the client has disconnected
		}
	}
}

// buffers is a pool of memory for encoding. Nothing may refer to the bytes of a buffer after it was
// put back.
type buffers struct {
	pool      sync.Pool // of *bytes.Buffer
	deflaters sync.Pool // of *flate.Writer
}

func (b *buffers) get() *bytes.Buffer {
	if buf, ok := b.pool.Get().(*bytes.Buffer); ok {
		return buf
	}

	return new(bytes.Buffer)
}

func (b *buffers) put(buf *bytes.Buffer) {
	buf.Reset()
	b.pool.Put(buf)
}

// bodyPrefix is the beginning of a body. With gzip its bytes are the beginning of a member, which
// gzipTrailer ends. Its zero value is empty.
type bodyPrefix struct {
	bytes []byte
	size  uint32 // of the plain text, modulo 2^32 as in the trailer of gzip
	sum   uint32 // with gzip: CRC-32 of the plain text
}

const (
	// gzipLevel was chosen by measurement, see docs/performance.md: a single Prometheus waits for
	// the compression on every scrape, and higher levels take up to twice the time of everything
	// else for a fifth fewer bytes.
	gzipLevel = flate.BestSpeed
	// gzipHeader begins a member: deflate, no flags, no time, no hint, unknown system (RFC 1952,
	// 2.3).
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	// deflateEnd is an empty last block of a deflate stream (RFC 1951, 3.2.6).
	deflateEnd = "\x03\x00"
)

// gzipPrefix appends to dst the beginning of a gzip member that contains text, up to a byte
// boundary.
//
// RFC 1952 (2.2) allows several members, but curl, browsers and Python's zlib stop at the end of
// the first one. A body is therefore a single member, the beginning of which answers share.
func (b *buffers) gzipPrefix(dst *bytes.Buffer, text []byte) bodyPrefix {
	if len(text) == 0 {
		return bodyPrefix{}
	}

	dst.WriteString(gzipHeader)
	b.deflate(dst, text)

	return bodyPrefix{bytes: dst.Bytes(), size: uint32(len(text)), sum: crc32.ChecksumIEEE(text)}
}

// gzip appends to dst a gzip member that contains text.
func (b *buffers) gzip(dst *bytes.Buffer, text []byte) {
	prefix := b.gzipPrefix(dst, text)
	if len(text) == 0 {
		dst.WriteString(gzipHeader) // gzipPrefix has written nothing
	}

	dst.Write(gzipTrailer(prefix.sum, prefix.size))
}

// joinGzip returns the parts of the gzip member that prefix begins and that continues with trailer.
func joinGzip(prefix bodyPrefix, trailer bodyTrailer) [][]byte {
	begin := prefix.bytes
	if len(begin) == 0 {
		begin = []byte(gzipHeader)
	}

	sum := crc32.Update(prefix.sum, crc32.IEEETable, trailer.text)

	return [][]byte{begin, trailer.packed, gzipTrailer(sum, prefix.size+uint32(len(trailer.text)))}
}

// gzipTrailer returns the end of a member whose blocks so far end at a byte boundary: an empty last
// block, then the checksum and the size of the plain text.
func gzipTrailer(sum, size uint32) []byte {
	trailer := append(make([]byte, 0, len(deflateEnd)+8), deflateEnd...)
	trailer = binary.LittleEndian.AppendUint32(trailer, sum)

	return binary.LittleEndian.AppendUint32(trailer, size)
}

// deflate appends text to dst as deflate blocks that refer to nothing before them and end at a byte
// boundary. The stream may continue after them.
func (b *buffers) deflate(dst *bytes.Buffer, text []byte) {
	zw, ok := b.deflaters.Get().(*flate.Writer)

	var err error
	if !ok {
		zw, err = flate.NewWriter(dst, gzipLevel)
	} else {
		zw.Reset(dst)
	}

	if err == nil {
		_, err = zw.Write(text)
	}

	if err == nil {
		err = zw.Flush()
	}

	if err != nil {
		panic(err) // writing to memory does not fail
	}

	b.deflaters.Put(zw)
}
