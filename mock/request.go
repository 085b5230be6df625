// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultCapacity = 1 << 30
	// maxCapacity is also what is always left to provision: volumes take only the
	// space that their content needs.
	maxCapacity = 64 << 40

	// maxNameBytes is CSI's general size limit of a string.
	maxNameBytes = 128

	// parameterHydrate in a StorageClass overrides Config.Hydrate.
	parameterHydrate = "hydrate"
	// parameterReserved starts the keys that the CO's own sidecars add.
	parameterReserved = "csi.storage.k8s.io/"
)

// mutableParameters are the keys of ControllerModifyVolume. Their values are
// positive numbers, which are remembered and have no effect.
var mutableParameters = []string{"iops", "throughput"}

// accessType checks capabilities and says whether they are those of a block
// volume. All access modes are supported.
func accessType(capabilities []*csi.VolumeCapability) (block bool, err error) {
	if len(capabilities) == 0 || capabilities[0] == nil {
		return false, invalid("no volume capability is given")
	}
	for _, capability := range capabilities {
		if capability.GetBlock() == nil && capability.GetMount() == nil {
			return false, invalid("a volume capability names neither block nor mount access")
		}
		mode := capability.GetAccessMode().GetMode()
		if _, known := csi.VolumeCapability_AccessMode_Mode_name[int32(mode)]; !known || mode == csi.VolumeCapability_AccessMode_UNKNOWN {
			return false, invalid("access mode %s is not supported", mode)
		}
		if _, err := mountFlags(capability.GetMount().GetMountFlags()); err != nil {
			return false, err
		}
	}
	block = capabilities[0].GetBlock() != nil
	for _, capability := range capabilities {
		if (capability.GetBlock() != nil) != block {
			return false, invalid("a volume is either a block or a mount volume, not both")
		}
	}
	return block, nil
}

func accessTypeName(block bool) string {
	if block {
		return "block"
	}
	return "mount"
}

func chooseCapacity(wanted *csi.CapacityRange) (int64, error) {
	required, limit := wanted.GetRequiredBytes(), wanted.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, invalid("a capacity cannot be negative: required %d, limit %d", required, limit)
	case limit > 0 && required > limit:
		return 0, invalid("the required capacity of %d bytes is more than the limit of %d", required, limit)
	case required > maxCapacity:
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are required, but no volume has more than %d", required, int64(maxCapacity))
	case required > 0:
		return required, nil
	case limit > 0:
		return min(limit, defaultCapacity), nil
	default:
		return defaultCapacity, nil
	}
}

func (d *Driver) checkParameters(parameters map[string]string) (hydrate time.Duration, err error) {
	hydrate = d.config.Hydrate
	for key, value := range parameters {
		switch {
		case strings.HasPrefix(key, parameterReserved):
		case key == parameterHydrate:
			if hydrate, err = time.ParseDuration(value); err != nil || hydrate < 0 {
				return 0, invalid("parameter %s: %q is not a duration such as 10s", key, value)
			}
		default:
			return 0, invalid("parameter %q is unknown; there is only %s", key, parameterHydrate)
		}
	}
	return hydrate, nil
}

func checkMutableParameters(parameters map[string]string) error {
	for key, value := range parameters {
		if !slices.Contains(mutableParameters, key) {
			return invalid("mutable parameter %q is unknown; there are %s", key, strings.Join(mutableParameters, ", "))
		}
		if number, err := strconv.ParseInt(value, 10, 64); err != nil || number <= 0 {
			return invalid("mutable parameter %s: %q is not a positive number", key, value)
		}
	}
	return nil
}

// checkName applies CSI's rules for names that the CO makes up.
func checkName(name string) error {
	switch {
	case name == "":
		return invalid("no name is given")
	case len(name) > maxNameBytes:
		return invalid("a name has %d bytes, more than %d", len(name), maxNameBytes)
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\t\n\r", r) }):
		return invalid("name %q contains control characters", name)
	}
	return nil
}

// page cuts the page that a request asks for out of all objects, which are
// sorted by ID. A token is the ID of the last object on the page before, so
// that it stays good whatever is created or deleted between two pages.
func page[T any](all []T, id func(T) string, validID *regexp.Regexp, request interface {
	GetMaxEntries() int32
	GetStartingToken() string
}) (entries []T, next string, err error) {
	if request.GetMaxEntries() < 0 {
		return nil, "", invalid("the maximum number of entries is negative: %d", request.GetMaxEntries())
	}
	if token := request.GetStartingToken(); token != "" {
		if !validID.MatchString(token) {
			return nil, "", status.Errorf(codes.Aborted, "starting token %q is not valid; list from the start", token)
		}
		start, found := slices.BinarySearchFunc(all, token, func(object T, token string) int {
			return strings.Compare(id(object), token)
		})
		if found {
			start++
		}
		all = all[start:]
	}
	if maximum := int(request.GetMaxEntries()); maximum > 0 && len(all) > maximum {
		return all[:maximum], id(all[maximum-1]), nil
	}
	return all, "", nil
}

// enumerate lists names for a message, the first few of them.
func enumerate(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(len(names)-most) + " more"
}
