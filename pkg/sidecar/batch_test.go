// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// reads is a batch whose reads are numbered and end when they are let go.
func reads() (b *batch[string, int], begun func() int, finish chan error) {
	count := 0
	finish = make(chan error)
	b = newBatch(func(context.Context, string) (int, error) {
		count++
		n := count
		return n, <-finish
	})
	return b, func() int { synctest.Wait(); return count }, finish
}

type outcome struct {
	value int
	err   error
}

// ask returns at once; the outcome comes later.
func ask(t *testing.T, b *batch[string, int], key string) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		value, err := b.get(t.Context(), key)
		c <- outcome{value, err}
	}()
	synctest.Wait()
	return c
}

// TestBatchIsNeverOlderThanTheCall: who asks while a read is under way gets the
// next one, together with all others who ask meanwhile.
func TestBatchIsNeverOlderThanTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, begun, finish := reads()
		first := ask(t, b, "prod")
		second, third := ask(t, b, "prod"), ask(t, b, "prod")
		if n := begun(); n != 1 {
			t.Fatalf("%d reads at a time", n)
		}
		finish <- nil
		if got := <-first; got.value != 1 {
			t.Errorf("the first to ask got read %d", got.value)
		}
		if n := begun(); n != 2 {
			t.Fatalf("%d reads were begun, want one for the two who waited", n)
		}
		fourth := ask(t, b, "prod")
		finish <- nil
		for _, c := range []<-chan outcome{second, third} {
			if got := <-c; got.value != 2 {
				t.Errorf("who asked during read 1 got read %d", got.value)
			}
		}
		finish <- nil
		if got := <-fourth; got.value != 3 {
			t.Errorf("who asked during read 2 got read %d", got.value)
		}
	})
}

// TestBatchRests: the slower reads are, the longer the next one waits for others
// to join, but not for ever.
func TestBatchRests(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{10 * time.Millisecond, 30 * time.Millisecond},
		{time.Minute, fresh},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, begun, finish := reads()
			first := ask(t, b, "prod")
			time.AfterFunc(c.took, func() { finish <- nil })
			<-first
			second, third := ask(t, b, "prod"), ask(t, b, "prod")
			if rested := takes(t, func() bool { return begun() == 2 }); rested != c.want {
				t.Errorf("after a read that took %s the next one began %s later, want %s", c.took, rested, c.want)
			}
			finish <- nil
			if a, b := <-second, <-third; a != b {
				t.Errorf("who asked while it rested got %v and %v", a, b)
			}
		})
	}
}

func TestBatchKeepsKeysApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, begun, finish := reads()
		prod, dev := ask(t, b, "prod"), ask(t, b, "dev")
		if n := begun(); n != 2 {
			t.Errorf("%d reads for two keys", n)
		}
		finish <- nil
		finish <- nil
		<-prod
		<-dev
	})
}

func TestBatchTellsTheErrorToAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, finish := reads()
		first := ask(t, b, "prod")
		second, third := ask(t, b, "prod"), ask(t, b, "prod")
		down := errors.New("down")
		finish <- nil
		finish <- down
		if got := <-first; got.err != nil {
			t.Error(got.err)
		}
		for _, c := range []<-chan outcome{second, third} {
			if got := <-c; !errors.Is(got.err, down) {
				t.Errorf("got %v", got.err)
			}
		}
		// And the next read is a new one.
		fourth := ask(t, b, "prod")
		finish <- nil
		if got := <-fourth; got.err != nil || got.value != 3 {
			t.Errorf("got %+v", got)
		}
	})
}
