package commands

import (
	"bytes"
	"encoding/binary"
	"os"
)

// interpreterOf is the loader that an ELF program names (elf(5), PT_INTERP);
// empty for any other file. A list may have thousands of programs, so what is
// read is the first block.
func interpreterOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 4096)
	n, _ := f.ReadAt(buf, 0)
	return interpreter(buf[:n])
}

// interpreter reads the head of a file. Of numbers that point beyond it, it
// makes nothing.
func interpreter(head []byte) string {
	if len(head) < 64 || !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return ""
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	const ptInterp = 3
	wide := head[4] == 2
	var at, size, count uint64
	if wide {
		at, size, count = order.Uint64(head[32:]), uint64(order.Uint16(head[54:])), uint64(order.Uint16(head[56:]))
	} else {
		at, size, count = uint64(order.Uint32(head[28:])), uint64(order.Uint16(head[42:])), uint64(order.Uint16(head[44:]))
	}
	for range min(count, 64) {
		if size < 32 || at > uint64(len(head)) || at+size > uint64(len(head)) {
			return ""
		}
		header := head[at:]
		at += size
		if order.Uint32(header) != ptInterp {
			continue
		}
		var offset, length uint64
		if wide {
			if len(header) < 40 {
				return ""
			}
			offset, length = order.Uint64(header[8:]), order.Uint64(header[32:])
		} else {
			offset, length = uint64(order.Uint32(header[4:])), uint64(order.Uint32(header[16:]))
		}
		if offset > uint64(len(head)) || length > uint64(len(head)) || offset+length > uint64(len(head)) {
			return ""
		}
		name, _, _ := bytes.Cut(head[offset:offset+length], []byte{0})
		return string(name)
	}
	return ""
}
