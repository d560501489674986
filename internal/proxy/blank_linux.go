package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"link.internal/lnk/internal/confine"
	"link.internal/lnk/internal/control"
	"link.internal/lnk/internal/peercred"
)

// controlServer serves the control socket: a blank proxy's bind, and then what
// any proxy's takes.
func (p *Proxy) controlServer(at Places, socket *controlSocket, kept *confine.Files) control.Server {
	uids := []int{os.Geteuid()}
	if at.Binder >= 0 {
		uids = append(uids, at.Binder)
	}
	return control.Server{
		Wire: func() control.Wire {
			// Not a nil *Service in an interface.
			if service := p.bound(); service != nil {
				return service
			}
			return nil
		},
		Bind:  func(line []byte) (func(), error) { return p.bind(at, socket, kept, line) },
		UIDs:  uids,
		Blank: at.Blank,
	}
}

// anExample is a line with all that may be in one.
const anExample = `{"internet_host":["a.test","*.b.test"],"tcp":["a.test:22"],"lan_host":["10.0.0.0/8"],"upstream":"direct","names":true,"per_minute":1,"pause_after":1,"wire":"","agent":"a",` +
	`"routes":[{"prefix":"/a","serve":{"unix":"/a"}}],"caller":{"name":"a","key":"a"},"url_secret":"a"}`

// What is done once in a process's life, as code being read and a library's
// tables being made, takes longer than all of a bind or a call. So a blank proxy
// does of both what goes without being bound, and without asking anybody, while
// nobody waits for it.

// rehearseBind makes a service of an example, and ends it; and it asks the
// control socket, by a line that is refused at its end, and so sees that it answers.
func (p *Proxy) rehearseBind(ctx context.Context, at Places) error {
	binding, err := control.ParseBind([]byte(anExample))
	if err != nil {
		return fmt.Errorf("bug: the example can't be bound: %w", err)
	}
	service, err := NewService(binding, "", ahead{}, p.log, p.refused)
	if err != nil {
		return fmt.Errorf("bug: the example can't be bound: %w", err)
	}
	service.Close()
	const unknown = "rehearsal"
	line := strings.TrimSuffix(anExample, "}") + `,"` + unknown + `":1}`
	err = control.SendBind(ctx, at.Control, []byte(line), os.Geteuid())
	if errors.Is(err, control.ErrBound) || err != nil && strings.Contains(err.Error(), unknown) {
		return nil // by whoever was waiting for the socket, or not yet
	}
	return fmt.Errorf("the control socket doesn't answer as it should: %w", err)
}

// rehearseCall looks a name up, as far as the machine's own files, and makes a
// call, which a proxy that isn't bound refuses.
func (p *Proxy) rehearseCall(ctx context.Context, at Places) error {
	// No bind comes meanwhile, in whose log it would be.
	p.binding.Lock()
	defer p.binding.Unlock()
	if p.service.Load() != nil {
		return nil
	}
	if _, err := p.ahead.interfaces.Machine(); err != nil {
		return err
	}
	nobody := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }}
	nobody.LookupNetIP(ctx, "ip", "a.test.")
	conn, err := peercred.DialOwned(ctx, filepath.Join(at.Dir, OutSocket), os.Geteuid())
	if err != nil {
		return fmt.Errorf("%s: %w", OutSocket, err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(rehearsalLimit))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a.test/", nil)
	if err != nil {
		return err
	}
	request.Close = true
	err = request.Write(conn)
	var response *http.Response
	if err == nil {
		response, err = http.ReadResponse(bufio.NewReader(conn), request)
	}
	if err == nil && response.StatusCode != http.StatusServiceUnavailable {
		err = errors.New(response.Status)
	}
	if err != nil {
		return fmt.Errorf("%s doesn't answer as it should: %w", OutSocket, err)
	}
	return nil
}

const rehearsalLimit = 10 * time.Second

// bound is the service, nil as long as there is none. Who asks while a bind is
// being completed, whose answer may be out already, waits for it.
func (p *Proxy) bound() *Service {
	service := p.service.Load()
	if service == nil && p.completing.Load() {
		p.binding.Lock()
		service = p.service.Load()
		p.binding.Unlock()
	}
	return service
}

// bind makes a blank proxy somebody's: the whole line is checked, then all of
// it holds, or nothing does. It is complete when what it returns has been
// called: the proxy gives up its files after its answer, which takes as long as
// all the rest, and serves nobody before it has.
func (p *Proxy) bind(at Places, socket *controlSocket, kept *confine.Files, line []byte) (complete func(), err error) {
	binding, err := control.ParseBind(line)
	if err != nil {
		return nil, err
	}
	p.binding.Lock()
	defer func() {
		if err != nil {
			p.binding.Unlock()
		}
	}()
	if p.service.Load() != nil {
		return nil, control.ErrBound
	}
	if binding.Wire != "" && !filepath.IsAbs(binding.Wire) {
		return nil, errors.New("wire is no absolute path")
	}
	if err := at.checkWire(binding.Wire); err != nil {
		return nil, err
	}
	service, err := NewService(binding, "", p.ahead, p.log, p.refused)
	if err != nil {
		return nil, err
	}
	err = keepFiles(kept, service)
	if err == nil {
		err = socket.markBound()
	}
	if err != nil {
		service.Close()
		return nil, err
	}
	p.completing.Store(true)
	return func() {
		defer p.binding.Unlock()
		p.ahead.listeners.Close()
		if err := kept.Restrict(); err != nil {
			// Nobody was served, and nobody will be.
			service.Close()
			p.fatal <- fmt.Errorf("giving up the user's files: %w", err)
			return
		}
		p.service.Store(service)
		p.mu.Lock()
		grounds := slices.Collect(maps.Keys(p.grounds))
		p.mu.Unlock()
		for _, g := range grounds {
			g.bound(service)
		}
	}, nil
}
