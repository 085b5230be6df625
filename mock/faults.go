// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// Fault is what goes wrong in calls of one RPC. Exactly one of Code, Hang,
// Garbage and Delay is set.
type Fault struct {
	// Method is the RPC's name without its service, such as CreateVolume.
	Method string
	// Code is answered instead of doing anything.
	Code codes.Code
	// Hang never answers, for as long as the caller waits.
	Hang bool
	// Garbage answers with a message of the right type in which every field has
	// a value that makes no sense, instead of doing anything.
	Garbage bool
	// Delay waits before the call is carried out. Where the caller does not wait
	// as long, nothing is done.
	Delay time.Duration
	// Times is in how many calls it goes wrong, from the next one on. 0: always.
	Times int
}

// ParseFault reads METHOD:WHAT[:times=N], where WHAT is hang, garbage,
// delay=DURATION or the name of a gRPC code such as UNAVAILABLE.
func ParseFault(text string) (Fault, error) {
	explain := func(format string, args ...any) error {
		return fmt.Errorf("fault %q: %s; the form is METHOD:CODE|hang|garbage|delay=DURATION[:times=N], such as CreateVolume:UNAVAILABLE:times=2",
			text, fmt.Sprintf(format, args...))
	}
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return Fault{}, explain("it has %d parts", len(parts))
	}
	fault := Fault{Method: parts[0]}
	if !slices.Contains(methods(), fault.Method) {
		return Fault{}, explain("no RPC is called %q", fault.Method)
	}
	switch what, value, _ := strings.Cut(parts[1], "="); what {
	case "hang":
		fault.Hang = true
	case "garbage":
		fault.Garbage = true
	case "delay":
		var err error
		if fault.Delay, err = time.ParseDuration(value); err != nil || fault.Delay <= 0 {
			return Fault{}, explain("%q is not a duration such as 5s", value)
		}
	default:
		if err := fault.Code.UnmarshalJSON([]byte(strconv.Quote(strings.ToUpper(what)))); err != nil || fault.Code == codes.OK {
			return Fault{}, explain("%q is neither hang, garbage, delay nor a gRPC code other than OK", what)
		}
	}
	if len(parts) == 3 {
		value, found := strings.CutPrefix(parts[2], "times=")
		times, err := strconv.Atoi(value)
		if !found || err != nil || times < 1 {
			return Fault{}, explain("%q is not times= and a positive number", parts[2])
		}
		fault.Times = times
	}
	return fault, nil
}

// methods are the names of all RPCs that a driver may serve.
func methods() []string {
	var names []string
	for _, service := range []grpc.ServiceDesc{
		csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc, csi.Node_ServiceDesc,
		transferpb.Transfer_ServiceDesc,
	} {
		for _, method := range service.Methods {
			names = append(names, method.MethodName)
		}
	}
	return names
}

type faultInjector struct {
	mu     sync.Mutex
	faults []Fault
}

func (i *faultInjector) set(faults []Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = slices.Clone(faults)
}

// next takes the fault that a call is to suffer.
func (i *faultInjector) next(method string) (fault Fault, found bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := slices.IndexFunc(i.faults, func(f Fault) bool { return f.Method == method })
	if n < 0 {
		return Fault{}, false
	}
	fault = i.faults[n]
	switch fault.Times {
	case 0:
	case 1:
		i.faults = slices.Delete(i.faults, n, n+1)
	default:
		i.faults[n].Times--
	}
	return fault, true
}

func (i *faultInjector) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	fault, found := i.next(filepath.Base(info.FullMethod))
	switch {
	case !found:
		return handler(ctx, request)
	case fault.Hang:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case fault.Garbage:
		return garbage(info.FullMethod)
	case fault.Code != codes.OK:
		return nil, status.Errorf(fault.Code, "%s fails because a test wants it to", fault.Method)
	}
	select {
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-time.After(fault.Delay):
		return handler(ctx, request)
	}
}

const (
	// garbageItems is more than any list in the transfer contract may have.
	garbageItems = 101
	// garbageText is longer than any text in it may be, and would draw over a
	// terminal.
	garbageRepeats = 200
	garbageText    = "\x1b[2J\u202egarbage\x00\n"
	garbageNumber  = -1
	garbageEnum    = 9999
)

// garbage is an answer of the type that method has.
func garbage(method string) (proto.Message, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, internal(err)
	}
	answer := dynamicpb.NewMessage(descriptor.(protoreflect.MethodDescriptor).Output())
	garble(answer, garbageItems)
	return answer, nil
}

// garble sets every field. Lists get that many items; lists within lists get
// one, or the answer would be larger than gRPC allows.
func garble(message protoreflect.Message, items int) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.IsMap():
			key := protoreflect.ValueOfString(garbageText).MapKey()
			message.Mutable(field).Map().Set(key, protoreflect.ValueOfString(garbageText))
		case field.IsList():
			list := message.Mutable(field).List()
			for range items {
				list.Append(garbageValue(field, list.NewElement))
			}
		default:
			message.Set(field, garbageValue(field, func() protoreflect.Value { return message.NewField(field) }))
		}
	}
}

func garbageValue(field protoreflect.FieldDescriptor, empty func() protoreflect.Value) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Repeat(garbageText, garbageRepeats))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(garbageEnum)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(garbageNumber)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(garbageNumber)
	case protoreflect.MessageKind:
		value := empty()
		garble(value.Message(), 1)
		return value
	default:
		return empty()
	}
}
