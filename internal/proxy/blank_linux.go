package proxy

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"link.internal/lnk/internal/control"
)

// controlServer serves the control socket: a blank proxy's bind, and then what
// any proxy's takes.
func (p *Proxy) controlServer(at Places) control.Server {
	uids := []int{os.Geteuid()}
	if at.Binder >= 0 {
		uids = append(uids, at.Binder)
	}
	return control.Server{
		Wire: func() control.Wire {
			// Not a nil *Service in an interface.
			if service := p.service.Load(); service != nil {
				return service
			}
			return nil
		},
		Bind:  func(line []byte) error { return p.bind(at, line) },
		UIDs:  uids,
		Blank: at.Blank,
	}
}

var errBound = errors.New("this proxy is bound already")

// bind makes a blank proxy somebody's: the whole line is checked, then all of
// it holds, or nothing does.
func (p *Proxy) bind(at Places, line []byte) error {
	binding, err := control.ParseBind(line)
	if err != nil {
		return err
	}
	p.binding.Lock()
	defer p.binding.Unlock()
	if p.service.Load() != nil {
		return errBound
	}
	if binding.Wire != "" && !filepath.IsAbs(binding.Wire) {
		return errors.New("wire is no absolute path")
	}
	service, err := NewService(binding, "", p.log, p.refused)
	if err != nil {
		return err
	}
	if err := giveUpFiles(at, service); err != nil {
		service.Close()
		return err
	}
	p.service.Store(service)
	p.mu.Lock()
	grounds := slices.Collect(maps.Keys(p.grounds))
	p.mu.Unlock()
	for _, g := range grounds {
		g.bound(service)
	}
	return nil
}
