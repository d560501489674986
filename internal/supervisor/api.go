package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/box"
	"link.internal/lnk/internal/peercred"
)

// managers is the group that may do what root may.
const managers = "lnk"

// role is what a peer may do, by its credentials at connect.
type role int

const (
	stranger role = iota
	reader        // the binder
	manager       // root, and the group
)

type roleKey struct{}

// Serve answers on the socket until ctx ends.
func (s *Supervisor) Serve(ctx context.Context, l *net.UnixListener) error {
	server := &http.Server{
		Handler: s.handler(),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, roleKey{}, conn.(known).role)
		},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.Serve(doorkeeper{l, s, make(chan struct{}, maxStrangers)}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// known is a connection of somebody who may ask for something.
type known struct {
	*net.UnixConn
	role role
}

// doorkeeper answers strangers itself: they hold few connections, and not for long.
type doorkeeper struct {
	*net.UnixListener
	s         *Supervisor
	strangers chan struct{}
}

// What strangers may hold: so many connections, for so long.
const (
	maxStrangers  = 32
	strangerLimit = time.Second
)

// Accept returns the next connection of one who is none.
func (d doorkeeper) Accept() (net.Conn, error) {
	for {
		conn, err := d.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if role := d.s.role(conn); role != stranger {
			return known{conn, role}, nil
		}
		select {
		case d.strangers <- struct{}{}:
			go func() {
				turnAway(conn)
				<-d.strangers
			}()
		default:
			conn.Close()
		}
	}
}

// turnAway hears a request, and says no to it.
func turnAway(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(strangerLimit))
	conn.Read(make([]byte, 4096))
	io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(forbidden))+"\r\n\r\n"+forbidden)
}

const forbidden = `{"error":"only root, and the group ` + managers + `, may do this; the binder may read slots"}`

// role judges who is at the other end. Whoever can't be asked is a stranger.
func (s *Supervisor) role(conn *net.UnixConn) role {
	uid, err := peercred.UID(conn)
	if err != nil {
		return stranger
	}
	if uid == 0 {
		return manager
	}
	if g, err := user.LookupGroup(managers); err == nil {
		gid, err := strconv.Atoi(g.Gid)
		if groups, groupsErr := peercred.Groups(conn); err == nil && groupsErr == nil && slices.Contains(groups, gid) {
			return manager
		}
	}
	if s.config.binder >= 0 && uid == s.config.binder {
		return reader
	}
	return stranger
}

// maxRequest bounds a request's body.
const maxRequest = 64 << 10

func (s *Supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, least role, f func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if got, _ := r.Context().Value(roleKey{}).(role); got < least {
				answer(w, http.StatusForbidden, box.Failure{Error: "only root, and the group " + managers + ", may do this; the binder may read slots"})
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
			what, err := f(r)
			switch {
			case errors.Is(err, errNoSlot):
				answer(w, http.StatusNotFound, box.Failure{Error: err.Error()})
			case err != nil:
				answer(w, http.StatusBadRequest, box.Failure{Error: err.Error()})
			default:
				answer(w, http.StatusOK, what)
			}
		})
	}
	handle("GET /v1/status", reader, func(*http.Request) (any, error) {
		status := box.Status{Version: s.options.Version, PID: os.Getpid(), Slots: make(map[string]int), Binder: s.config.binder}
		for _, one := range s.list(false) {
			status.Slots[one.State]++
		}
		return status, nil
	})
	handle("GET /v1/slots", reader, func(r *http.Request) (any, error) {
		// Who binds wants those of a state, soon, and not what each weighs.
		if state := r.URL.Query().Get("state"); state != "" {
			return slices.DeleteFunc(s.list(false), func(one box.Slot) bool { return one.State != state }), nil
		}
		return s.list(true), nil
	})
	handle("POST /v1/slots", manager, func(r *http.Request) (any, error) {
		var add box.Add
		decoder := json.NewDecoder(r.Body)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&add); err != nil {
			return nil, fmt.Errorf("it is no request to add slots: %w", err)
		}
		added, err := s.add(s.ctx, add.Add)
		if err != nil {
			return nil, err
		}
		list := []box.Slot{}
		for _, one := range added {
			list = append(list, s.describe(one, true))
		}
		return list, nil
	})
	handle("POST /v1/slots/{number}/recycle", manager, func(r *http.Request) (any, error) {
		number, err := numberOf(r)
		if err != nil {
			return nil, err
		}
		one, err := s.slot(number)
		if err != nil {
			return nil, err
		}
		if err := one.Do(r.Context(), false); err != nil {
			return nil, err
		}
		return s.describe(one, true), nil
	})
	handle("DELETE /v1/slots/{number}", manager, func(r *http.Request) (any, error) {
		number, err := numberOf(r)
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.remove(s.ctx, number)
	})
	handle("GET /v1/slots/{number}/logs", manager, func(r *http.Request) (any, error) {
		number, err := numberOf(r)
		if err != nil {
			return nil, err
		}
		if _, err := s.slot(number); err != nil {
			return nil, err
		}
		return s.logs.read(r.Context(), number)
	})
	metrics := promhttp.HandlerFor(s.metrics(), promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if got, _ := r.Context().Value(roleKey{}).(role); got < reader {
			answer(w, http.StatusForbidden, box.Failure{Error: "metrics are for root, the group " + managers + " and the binder"})
			return
		}
		metrics.ServeHTTP(w, r)
	})
	return mux
}

func numberOf(r *http.Request) (int, error) {
	number, err := strconv.Atoi(r.PathValue("number"))
	if err != nil || number < 1 {
		return 0, fmt.Errorf("%q is no slot's number", r.PathValue("number"))
	}
	return number, nil
}

func answer(w http.ResponseWriter, status int, what any) {
	if text, ok := what.(string); ok {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Write([]byte(text))
		return
	}
	data, err := json.Marshal(what)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":"bug: an answer that is none"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(data, '\n'))
}

// metrics are read anew for each question.
func (s *Supervisor) metrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s})
	return registry
}

type collector struct{ s *Supervisor }

var (
	slotsDesc  = prometheus.NewDesc("lnk_slots", "Slots by state.", []string{"state"}, nil)
	startsDesc = prometheus.NewDesc("lnk_slot_starts_total", "How often a slot was made anew.", []string{"slot"}, nil)
	startDesc  = prometheus.NewDesc("lnk_slot_start_seconds", "How long a slot's last start took.", []string{"slot"}, nil)
	memoryDesc = prometheus.NewDesc("lnk_slot_memory_bytes", "What a slot's processes take.", []string{"slot"}, nil)
	infoDesc   = prometheus.NewDesc("lnk_supervisor_info", "The supervisor's version.", []string{"version"}, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{slotsDesc, startsDesc, startDesc, memoryDesc, infoDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	states := map[string]float64{"starting": 0, "blank": 0, "bound": 0, "ending": 0, "waiting": 0}
	for _, one := range c.s.list(true) {
		states[one.State]++
		number := strconv.Itoa(one.Number)
		to <- prometheus.MustNewConstMetric(startsDesc, prometheus.CounterValue, float64(one.Starts), number)
		to <- prometheus.MustNewConstMetric(startDesc, prometheus.GaugeValue, one.StartMS/1000, number)
		if one.Memory > 0 {
			to <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(one.Memory), number)
		}
	}
	for state, n := range states {
		to <- prometheus.MustNewConstMetric(slotsDesc, prometheus.GaugeValue, n, state)
	}
	to <- prometheus.MustNewConstMetric(infoDesc, prometheus.GaugeValue, 1, c.s.options.Version)
}

// listen makes the API's socket. Everybody may connect, and is judged by who
// it is. What an earlier supervisor left is taken away: the state's lock says
// that it is gone.
func listen(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("%s is there, and no socket: move it away", path)
	}
	os.Remove(path)
	old := unix.Umask(0o111)
	defer unix.Umask(old)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", path, err)
	}
	return l, nil
}
