// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

var errStopped = errors.New("the cluster has stopped")

// Process is a program that the cluster runs. It is killed when the cluster
// stops and when the process that started it ends, however that ends.
type Process struct {
	// Name is unique in the cluster.
	Name string
	// Log is the path of the file that has the program's output, that of earlier
	// runs included.
	Log string

	path string
	args []string
	// ready returns nil once the program serves. Optional.
	ready func(context.Context) error
	// launcher starts it somewhere else. Optional.
	launcher launcher
	// dependent: it ends with another process, which is told when this one ends.
	dependent bool

	mu      sync.Mutex
	current *run // the last one; guarded by mu
	retired bool // not to be started again; guarded by mu
}

// run is one run of a program.
type run struct {
	pid    int
	exited chan struct{}
	err    error // valid once exited is closed
}

func (r *run) over() bool {
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

// Start starts the program again after it was killed or has ended, with the
// same arguments, and returns when it serves. A program that runs already is an
// error.
func (p *Process) Start(ctx context.Context) error {
	if err := p.start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	if p.ready == nil {
		return nil
	}
	return p.await(ctx)
}

func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired {
		return errStopped
	}
	if p.current != nil && !p.current.over() {
		return errors.New("it runs already")
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	// Some CSI sidecars prefer the variable to their flag.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
	// A group of its own keeps a Ctrl-C at the terminal from the program, which
	// would end it before whoever started it is done with it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if !p.dependent {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	launcher := p.launcher
	if launcher == nil {
		launcher = lastingThread()
	}
	if err := launcher.start(cmd); err != nil {
		return err
	}
	r := &run{pid: cmd.Process.Pid, exited: make(chan struct{})}
	p.current = r
	go func() {
		r.err = cmd.Wait()
		close(r.exited)
	}()
	return nil
}

// await polls ready: a program that is starting has nothing to subscribe to.
func (p *Process) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	r := p.last()
	go func() {
		select {
		case <-r.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = p.ready(ctx)
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	if r.over() {
		err = fmt.Errorf("it ended: %w", r.err)
	} else {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return p.withLog(fmt.Errorf("waiting for %s to be ready: %w", p.Name, err))
}

// Restart kills the program and starts it again.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// Kill ends the program at once (SIGKILL) and returns when it is gone. It does
// nothing to a program that has ended.
func (p *Process) Kill() {
	if r, err := p.signal(unix.SIGKILL); err == nil {
		<-r.exited
	}
}

// retire kills the program for good.
func (p *Process) retire() {
	p.mu.Lock()
	p.retired = true
	p.mu.Unlock()
	p.Kill()
}

// Stop asks the program to end (SIGTERM) and waits until it has. The error is
// that of a program that ended with a status other than 0.
func (p *Process) Stop(ctx context.Context) error {
	r, err := p.signal(unix.SIGTERM)
	if err != nil {
		return err
	}
	select {
	case <-r.exited:
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s to stop: %w", p.Name, ctx.Err())
	}
	if r.err != nil {
		return p.withLog(fmt.Errorf("%s: %w", p.Name, r.err))
	}
	return nil
}

// Pause stops the program from running (SIGSTOP) until Resume. Its connections
// stay open.
func (p *Process) Pause() error {
	r, err := p.signal(unix.SIGSTOP)
	if err != nil {
		return err
	}
	// Some of its threads may run a little longer.
	for {
		err := unix.Waitid(unix.P_PID, r.pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Resume continues a paused program.
func (p *Process) Resume() error {
	_, err := p.signal(unix.SIGCONT)
	return err
}

// Exited is closed when the run of the program that was last started is over.
func (p *Process) Exited() <-chan struct{} { return p.last().exited }

// PID is the process id of the run that was last started.
func (p *Process) PID() int { return p.last().pid }

func (p *Process) last() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// signal sends a signal to the program and to whatever it has started itself.
func (p *Process) signal(sig unix.Signal) (*run, error) {
	r := p.last()
	if r.over() {
		return nil, fmt.Errorf("%s: %w", p.Name, os.ErrProcessDone)
	}
	return r, unix.Kill(-r.pid, sig)
}

// withLog adds the end of the program's log to an error.
func (p *Process) withLog(err error) error {
	log, readErr := os.ReadFile(p.Log)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	return fmt.Errorf("%w\nthe end of its log %s:\n%s", err, p.Log, tail(log, 20))
}

// tail returns the last lines of text.
func tail(text []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

// launcher is a thread that starts processes.
type launcher chan startRequest

type startRequest struct {
	cmd    *exec.Cmd
	result chan<- error
}

// serve is what the thread does until the launcher is closed.
func (l launcher) serve() {
	for r := range l {
		r.result <- r.cmd.Start()
	}
}

func (l launcher) start(cmd *exec.Cmd) error {
	result := make(chan error)
	l <- startRequest{cmd, result}
	return <-result
}

// lastingThread starts processes that are to end with this one: Linux sends a
// child its parent-death signal when the thread that started it ends, and Go ends
// threads as it likes. This one lives as long as the process.
var lastingThread = sync.OnceValue(func() launcher {
	l := make(launcher)
	go func() {
		runtime.LockOSThread()
		l.serve()
	}()
	return l
})
