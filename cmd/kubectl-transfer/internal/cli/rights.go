// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// side is one of a transfer.
type side string

const (
	giving    side = "giving"
	receiving side = "receiving"
	// neither: cluster-wide.
	neither side = ""
)

// rights are verbs on a resource.
type rights struct {
	side      side
	namespace string
	resource  schema.GroupResource
	verbs     []string
}

var (
	claimResource    = schema.GroupResource{Resource: "persistentvolumeclaims"}
	requestResource  = schema.GroupResource{Group: v1alpha1.GroupName, Resource: "namespacetransferrequests"}
	approvalResource = schema.GroupResource{Group: v1alpha1.GroupName, Resource: "namespacetransferapprovals"}
)

// role is the shipped or built-in role that contains rights.
func (r rights) role() string {
	switch {
	case r.resource == requestResource:
		return "namespace-transfer-requester"
	case r.resource == approvalResource:
		return "namespace-transfer-approver"
	case r.resource != claimResource || slices.Contains(r.verbs, "delete"):
		return "edit"
	case r.side == receiving:
		return "namespace-transfer-requester"
	case slices.Contains(r.verbs, "create"):
		return "edit"
	}
	return "namespace-transfer-approver"
}

// String says what somebody may not do, and where.
func (r rights) String() string {
	text := strings.Join(r.verbs, ", ") + " " + r.resource.String()
	if r.namespace == "" {
		return text
	}
	text += " in namespace " + r.namespace
	if r.side != neither {
		text += ", the " + string(r.side) + " side"
	}
	return text
}

// require returns an error unless the user has all rights: it names all that are
// missing, and on which side, before anything is done by halves.
func (s *session) require(ctx context.Context, all ...rights) error {
	missing := make([]rights, len(all))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, r := range all {
		missing[i] = r
		missing[i].verbs = nil
		lacks := make([]bool, len(r.verbs))
		group.Go(func() error {
			for j, verb := range r.verbs {
				allowed, err := s.may(groupCtx, r, verb)
				if err != nil {
					return err
				}
				lacks[j] = !allowed
			}
			for j, verb := range r.verbs {
				if lacks[j] {
					missing[i].verbs = append(missing[i].verbs, verb)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	missing = slices.DeleteFunc(missing, func(r rights) bool { return len(r.verbs) == 0 })
	if len(missing) == 0 {
		return nil
	}
	return s.forbidden(ctx, missing)
}

// may asks the API server for one right.
func (s *session) may(ctx context.Context, r rights, verb string) (bool, error) {
	review, err := s.core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Verb: verb, Group: r.resource.Group, Resource: r.resource.Resource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking the API server for the right to %s %s: %w", verb, r.resource, err)
	}
	return review.Status.Allowed, nil
}

// forbidden says which rights are missing and what gives them.
func (s *session) forbidden(ctx context.Context, missing []rights) error {
	subject := "--user=NAME"
	who := "you"
	if me, err := s.core.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err == nil {
		who = me.Status.UserInfo.Username
		subject = "--user=" + who
		if account, ok := strings.CutPrefix(who, "system:serviceaccount:"); ok {
			subject = "--serviceaccount=" + account
		}
	}
	var text strings.Builder
	var grants []string
	for _, r := range missing {
		fmt.Fprintf(&text, "\n  %s may not %s", who, r)
		if r.namespace != "" {
			grants = append(grants, fmt.Sprintf("kubectl create rolebinding %s -n %s --clusterrole=%s %s", r.role(), r.namespace, r.role(), subject))
		}
	}
	slices.Sort(grants)
	if grants = slices.Compact(grants); len(grants) > 0 {
		fmt.Fprintf(&text, "\nAn administrator can allow it:\n  %s", strings.Join(grants, "\n  "))
	}
	return errors.New("rights are missing:" + text.String())
}
