package proxy

import "sync"

// copyBuffer is the size of the buffer through which a body is copied where
// the kernel can't splice it.
const copyBuffer = 256 << 10

// bufferPool is httputil.ReverseProxy's BufferPool.
type bufferPool struct{ pool sync.Pool }

func newBufferPool() *bufferPool {
	return &bufferPool{sync.Pool{New: func() any { return new([copyBuffer]byte) }}}
}

// Get returns a buffer of copyBuffer bytes.
func (p *bufferPool) Get() []byte { return p.pool.Get().(*[copyBuffer]byte)[:] }

// Put takes one back.
func (p *bufferPool) Put(buf []byte) { p.pool.Put((*[copyBuffer]byte)(buf)) }
