// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/onsi/ginkgo/v2/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// A wrongDriver is the mock driver with one thing wrong.
type wrongDriver struct {
	name    string
	linkage driver.Linkage
	// flagOnly: the driver does not serve the transfer service.
	flagOnly bool
	faults   []mock.Fault
	flaws    []flaw
	// why is a part of what every spec says that fails, and caughtBy are those
	// that must fail, without what all names have in common.
	why      string
	caughtBy []string
}

var wrongDrivers = []wrongDriver{{
	name:     "vouches for a volume with a snapshot",
	linkage:  driver.LinkageChain,
	flaws:    []flaw{forgets(transferpb.Blocker_TYPE_SNAPSHOT)},
	why:      "while there is snapshot",
	caughtBy: []string{"linkage / a volume with a snapshot / can be deleted before what stays behind"},
}, {
	name:     "forgets a descendant",
	linkage:  driver.LinkageChain,
	flaws:    []flaw{forgets(transferpb.Blocker_TYPE_DESCENDANT)},
	why:      "while there is clone",
	caughtBy: []string{"linkage / a volume with a clone / can be deleted before what stays behind"},
}, {
	name:    "forgets the ancestor",
	linkage: driver.LinkageChain,
	flaws:   []flaw{forgets(transferpb.Blocker_TYPE_ANCESTOR)},
	why:     "while there is the volume",
	caughtBy: []string{
		"linkage / a clone / outlives what stays behind",
		"linkage / a restored volume / outlives what stays behind",
	},
}, {
	name:     "has links and says that it has none",
	linkage:  driver.LinkageChain,
	flagOnly: true,
	flaws: []flaw{answers(func(_ *notes, _ *csi.GetPluginInfoRequest, info *csi.GetPluginInfoResponse) {
		info.Manifest[v1alpha1.AnnotationSnapshotLinkage] = string(driver.LinkageNone)
	})},
	why: "the volume can be transferred by the driver's word, but deleting",
	caughtBy: []string{
		"linkage / a volume with a snapshot / can be deleted before what stays behind",
		"linkage / a volume with a clone / can be deleted before what stays behind",
		"linkage / a clone / outlives what stays behind",
		"linkage / a restored volume / outlives what stays behind",
	},
}, {
	name:     "names a linkage that does not exist",
	linkage:  driver.LinkageNone,
	flagOnly: true,
	flaws: []flaw{answers(func(_ *notes, _ *csi.GetPluginInfoRequest, info *csi.GetPluginInfoResponse) {
		info.Manifest[v1alpha1.AnnotationSnapshotLinkage] = "false"
	})},
	why:      "is \"false\", which is none of none, snapshots and chain",
	caughtBy: []string{"capability / names a snapshot linkage that the contract knows"},
}, {
	name:    "does not name its linkage",
	linkage: driver.LinkageNone,
	flaws: []flaw{answers(func(_ *notes, _ *transferpb.GetCapabilitiesRequest, can *transferpb.GetCapabilitiesResponse) {
		can.SnapshotLinkage = transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_UNSPECIFIED
	})},
	why:      "SNAPSHOT_LINKAGE_UNSPECIFIED: it would be taken for chain",
	caughtBy: []string{"capability / names a snapshot linkage that the contract knows"},
}, {
	name:    "lists a capability twice",
	linkage: driver.LinkageNone,
	flaws: []flaw{answers(func(_ *notes, _ *transferpb.GetCapabilitiesRequest, can *transferpb.GetCapabilitiesResponse) {
		can.Capabilities = append(can.Capabilities, can.Capabilities[0])
	})},
	why:      "CAPABILITY_VALIDATE_VOLUME CAPABILITY_VALIDATE_VOLUME",
	caughtBy: []string{"capability / lists each capability once"},
}, {
	name:    "changes its linkage between calls",
	linkage: driver.LinkageNone,
	flaws: []flaw{answers(func(n *notes, _ *transferpb.GetCapabilitiesRequest, can *transferpb.GetCapabilitiesResponse) {
		if n.calls++; n.calls%2 == 0 {
			can.SnapshotLinkage = transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_CHAIN
		}
	})},
	why:      "SNAPSHOT_LINKAGE_CHAIN}",
	caughtBy: []string{"capability / is the same each time"},
}, {
	name:    "does not serve what it lists",
	linkage: driver.LinkageNone,
	faults:  []mock.Fault{{Method: "SetOwner", Code: codes.Unimplemented}},
	why:     "the driver answers Unimplemented",
	caughtBy: []string{
		"SetOwner / refuses a request that lacks a required field",
		"SetOwner / does not know a volume that does not exist",
	},
}, {
	name:     "hangs when asked what it can do",
	linkage:  driver.LinkageNone,
	faults:   []mock.Fault{{Method: "GetCapabilities", Hang: true}},
	why:      "GetCapabilities: DeadlineExceeded",
	caughtBy: []string{"capability / is told when the sidecar asks"},
}, {
	name:     "hangs when asked about a volume",
	linkage:  driver.LinkageNone,
	faults:   []mock.Fault{{Method: "ValidateVolume", Hang: true}},
	why:      "ValidateVolume: DeadlineExceeded",
	caughtBy: []string{"linkage / a clone / can be deleted before what stays behind"},
}, {
	name:     "hangs when told an owner",
	linkage:  driver.LinkageNone,
	faults:   []mock.Fault{{Method: "SetOwner", Hang: true}},
	why:      "SetOwner: DeadlineExceeded",
	caughtBy: []string{"SetOwner / can be called again"},
}, {
	name:    "has the wrong code for a missing volume",
	linkage: driver.LinkageNone,
	flaws: []flaw{instead(func(_ *notes, _ validateRequest, carryOut func() (verdict, error)) (verdict, error) {
		v, err := carryOut()
		if status.Code(err) == codes.NotFound {
			err = status.Error(codes.Internal, "no rows in result set")
		}
		return v, err
	})},
	why:      "want the code NotFound, the driver answers Internal",
	caughtBy: []string{"ValidateVolume / does not know a volume that does not exist"},
}, {
	name:    "sets the owner of a missing volume",
	linkage: driver.LinkageNone,
	flaws: []flaw{instead(func(_ *notes, _ ownerRequest, carryOut func() (ownerSet, error)) (ownerSet, error) {
		set, err := carryOut()
		if status.Code(err) == codes.NotFound {
			return &transferpb.SetOwnerResponse{}, nil
		}
		return set, err
	})},
	why:      "want the code NotFound, the driver answers OK",
	caughtBy: []string{"SetOwner / does not know a volume that does not exist"},
}, {
	name:    "does not mind who gets the volume",
	linkage: driver.LinkageNone,
	flaws: []flaw{asked(func(_ *notes, request ownerRequest) error {
		if request.GetTo() != nil && request.GetTo().GetUid() == "" {
			request.To.Uid = "unknown"
		}
		return nil
	})},
	why:      "a request without to.uid: want the code InvalidArgument, the driver answers OK",
	caughtBy: []string{"SetOwner / refuses a request that lacks a required field"},
}, {
	name:     "confirms and names blockers",
	linkage:  driver.LinkageChain,
	flaws:    []flaw{answers(func(_ *notes, _ validateRequest, v verdict) { v.Confirmed = true })},
	why:      "it confirms the volume and names 1 blockers",
	caughtBy: []string{"ValidateVolume / calls a snapshot that blocks by its ID, until it is deleted"},
}, {
	name:    "names more blockers than the contract allows",
	linkage: driver.LinkageSnapshots,
	flaws: []flaw{answers(func(_ *notes, _ validateRequest, v verdict) {
		for range 100 * len(v.Blockers) {
			blocks(v, v.Blockers[0].GetType(), v.Blockers[0].GetId())
		}
	})},
	why:      "it names 101 blockers, more than 100",
	caughtBy: []string{"ValidateVolume / calls a snapshot that blocks by its ID, until it is deleted"},
}, {
	name:    "draws over the terminal",
	linkage: driver.LinkageSnapshots,
	flaws: []flaw{answers(func(_ *notes, _ validateRequest, v verdict) {
		for _, b := range v.Blockers {
			b.Message = "\x1b[2J" + b.GetMessage()
		}
	})},
	why:      "has characters that are not graphic",
	caughtBy: []string{"ValidateVolume / calls a snapshot that blocks by its ID, until it is deleted"},
}, {
	name:    "calls a snapshot by a name of its own",
	linkage: driver.LinkageSnapshots,
	flaws: []flaw{answers(func(_ *notes, _ validateRequest, v verdict) {
		for _, b := range v.Blockers {
			b.Id = "backend:" + b.GetId()
		}
	})},
	why:      "the driver calls it \"backend:snap-",
	caughtBy: []string{"ValidateVolume / calls a snapshot that blocks by its ID, until it is deleted"},
}, {
	name:    "answers for volumes that it was not asked about",
	linkage: driver.LinkageSnapshots,
	flaws: []flaw{answers(func(n *notes, _ validateRequest, v verdict) {
		snapshots, err := os.ReadDir(filepath.Join(n.stateDir, "snapshots"))
		if err != nil {
			panic(err)
		}
		v.Blockers = nil
		for _, snapshot := range snapshots {
			blocks(v, transferpb.Blocker_TYPE_SNAPSHOT, snapshot.Name())
		}
	})},
	why:      "only another volume has a snapshot, the driver names blockers",
	caughtBy: []string{"ValidateVolume / does not mind what other volumes are linked to"},
}, {
	name:     "lists the snapshots of all volumes",
	linkage:  driver.LinkageSnapshots,
	flagOnly: true,
	flaws: []flaw{asked(func(_ *notes, request *csi.ListSnapshotsRequest) error {
		request.SourceVolumeId = ""
		return nil
	})},
	why:      "asked for the snapshots of one volume, it has snapshot",
	caughtBy: []string{"linkage / ListSnapshots finds the snapshots of a volume, and no others"},
}, {
	name:     "forgets all pages but the first",
	linkage:  driver.LinkageSnapshots,
	flagOnly: true,
	flaws: []flaw{answers(func(_ *notes, _ *csi.ListSnapshotsRequest, page *csi.ListSnapshotsResponse) {
		page.NextToken = ""
	})},
	why:      "ListSnapshots in pages of one finds [snap-",
	caughtBy: []string{"linkage / ListSnapshots finds the snapshots of a volume, and no others"},
}, {
	name:    "changes its verdict between calls",
	linkage: driver.LinkageNone,
	flaws: []flaw{answers(func(n *notes, _ validateRequest, v verdict) {
		n.calls++
		v.Confirmed = v.Confirmed && n.calls%2 == 0
	})},
	why:      "and is now {Confirmed:false Blockers:[]}",
	caughtBy: []string{"ValidateVolume / gives the same answer while nothing changes"},
}, {
	name:    "takes a question for the transfer",
	linkage: driver.LinkageNone,
	flaws: []flaw{answers(func(n *notes, request validateRequest, v verdict) {
		id, to := request.GetVolumeId(), request.GetTo().GetUid()
		if reserved := n.owners["reserved "+id]; reserved != "" && reserved != to && reserved != request.GetFrom().GetUid() {
			blocks(v, transferpb.Blocker_TYPE_TENANT_BOUND, reserved)
			return
		}
		n.owners["reserved "+id] = to
	})},
	why:      "a transfer to another claim was only asked about before",
	caughtBy: []string{"ValidateVolume / changes nothing"},
}, {
	name:     "confirms a volume that is in use",
	linkage:  driver.LinkageNone,
	flaws:    []flaw{forgets(transferpb.Blocker_TYPE_PUBLISHED)},
	why:      "the driver confirms that its owner cannot reach it any more",
	caughtBy: []string{"ValidateVolume / does not confirm a volume that is published to a node"},
}, {
	name:    "cannot be told an owner twice",
	linkage: driver.LinkageNone,
	flaws: []flaw{asked(func(n *notes, request ownerRequest) error {
		if to := request.GetTo().GetUid(); to != "" && n.owners[request.GetVolumeId()] == to {
			return status.Errorf(codes.AlreadyExists, "%s owns the volume", to)
		}
		return nil
	}), remembers},
	why: "AlreadyExists",
	caughtBy: []string{
		"SetOwner / can be called again",
		"SetOwner / can be called twice at once",
	},
}, {
	name:    "does not undo on rollback",
	linkage: driver.LinkageNone,
	flaws: []flaw{
		asked(func(n *notes, request ownerRequest) error {
			if from := request.GetFrom().GetUid(); n.owners[request.GetVolumeId()] == from {
				request.From, request.To = request.To, request.From
			}
			return nil
		}),
		remembers,
		answers(func(n *notes, request validateRequest, v verdict) {
			if owner := n.owners[request.GetVolumeId()]; owner != "" && owner != request.GetFrom().GetUid() {
				blocks(v, transferpb.Blocker_TYPE_TENANT_BOUND, owner)
			}
		}),
	},
	why:      "the volume was given and taken back, the driver's verdict",
	caughtBy: []string{"SetOwner / is undone with the sides swapped"},
}, {
	name:    "refuses to undo",
	linkage: driver.LinkageNone,
	flaws: []flaw{asked(func(n *notes, request ownerRequest) error {
		if from := request.GetFrom().GetUid(); from != "" && n.owners[request.GetVolumeId()] == from {
			return status.Error(codes.FailedPrecondition, "the volume has been transferred")
		}
		return nil
	}), remembers},
	why:      "undoing it: ",
	caughtBy: []string{"SetOwner / is undone with the sides swapped"},
}, {
	name:    "loses data on rollback",
	linkage: driver.LinkageNone,
	flaws: []flaw{asked(func(n *notes, request ownerRequest) error {
		if id := request.GetVolumeId(); n.owners[id] == request.GetFrom().GetUid() {
			os.Remove(n.contentOf(id))
		}
		return nil
	}), remembers},
	why:      "after the volume came back, reading what was written before",
	caughtBy: []string{"SetOwner / keeps the data when the volume goes over, and when it comes back"},
}, {
	name:    "deletes by the first owner",
	linkage: driver.LinkageNone,
	flaws: []flaw{remembers, instead(func(n *notes, request *csi.DeleteVolumeRequest, carryOut func() (*csi.DeleteVolumeResponse, error)) (*csi.DeleteVolumeResponse, error) {
		if n.owners[request.GetVolumeId()] != "" {
			return &csi.DeleteVolumeResponse{}, nil
		}
		return carryOut()
	})},
	why:      "which was transferred and then deleted: want the code NotFound, the driver answers OK",
	caughtBy: []string{"SetOwner / makes the volume one of the new owner's like any other"},
}, {
	name:    "lets only the first owner expand",
	linkage: driver.LinkageNone,
	flaws: []flaw{remembers, asked(func(n *notes, request *csi.ControllerExpandVolumeRequest) error {
		if n.owners[request.GetVolumeId()] != "" {
			return status.Error(codes.PermissionDenied, "the volume belongs to another tenant")
		}
		return nil
	})},
	why:      "expanding a transferred volume: ",
	caughtBy: []string{"SetOwner / makes the volume one of the new owner's like any other"},
}, {
	name:    "changes the volume's context",
	linkage: driver.LinkageNone,
	flaws: []flaw{remembers, answers(func(n *notes, request *csi.ControllerGetVolumeRequest, answer *csi.ControllerGetVolumeResponse) {
		if owner := n.owners[request.GetVolumeId()]; owner != "" {
			answer.Volume.VolumeContext = map[string]string{"tenant": owner}
		}
	})},
	why:      "and is now {",
	caughtBy: []string{"SetOwner / leaves the volume's ID, context and capacity alone"},
}, {
	name:    "names volumes after their claims",
	linkage: driver.LinkageNone,
	flaws: []flaw{asked(func(_ *notes, request *csi.CreateVolumeRequest) error {
		if claim := request.GetParameters()["csi.storage.k8s.io/pvc/name"]; claim != "" {
			request.Name = request.GetParameters()["csi.storage.k8s.io/pvc/namespace"] + "-" + claim
		}
		return nil
	})},
	why:      "made for claims of one name, are both",
	caughtBy: []string{"linkage / gives a new claim with the name of the old one a volume of its own"},
}}

func TestWrongDrivers(t *testing.T) {
	for _, w := range wrongDrivers {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			results.wrong.Add(1)
			dir := tempDir(t)
			n := &notes{stateDir: filepath.Join(dir, "state"), owners: map[string]string{}}
			address := serve(t, dir, mock.Config{
				Linkage: w.linkage, TransferService: !w.flagOnly, AttachRequired: true,
				Faults: w.faults, Intercept: n.flawed(w.flaws),
			})
			timeout := "--timeout=15s"
			if slices.ContainsFunc(w.faults, func(f mock.Fault) bool { return f.Hang }) {
				timeout = "--timeout=1s"
			}
			out, report := conform(t, address, timeout)

			failures := map[string]string{}
			for _, spec := range report.SpecReports {
				if spec.State.Is(types.SpecStateFailureStates) {
					failures[name(spec)] = spec.Failure.Message
				}
			}
			for _, spec := range w.caughtBy {
				if _, failed := failures["Transfer / contract / "+spec]; !failed {
					t.Errorf("it passes %q", spec)
				}
			}
			for spec, message := range failures {
				if !strings.Contains(message, w.why) {
					t.Errorf("%q fails for another reason than %q: %s", spec, w.why, message)
				}
			}
			if !strings.Contains(out, w.why) {
				t.Errorf("the report does not say %q:\n%s", w.why, out)
			}
			if !t.Failed() {
				results.caught.Add(1)
			}
		})
	}
}
