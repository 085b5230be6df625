// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rights compares what RBAC allows with what was done, according to the
// API server's audit log.
package rights

import (
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// decision is the annotation in which the API server notes what RBAC says.
const decision = "authorization.k8s.io/decision"

// Resource is what a request is for, as rules name it: with its subresource.
func Resource(e auditv1.Event) string {
	if e.ObjectRef.Subresource != "" {
		return e.ObjectRef.Resource + "/" + e.ObjectRef.Subresource
	}
	return e.ObjectRef.Resource
}

// action is what a rule allows.
func action(verb, group, resource string) string {
	return verb + " " + schema.GroupResource{Group: group, Resource: resource}.String()
}

func actionOf(e auditv1.Event) string {
	return action(e.Verb, e.ObjectRef.APIGroup, Resource(e))
}

// Lacking names each thing that the requests of one user were for and that the
// user has no right to do.
//
// An API server that has just started knows no roles yet, and refuses for a
// moment what it allows afterwards: what was also allowed is no such thing. Who may
// watch is taken to may list, which is done only where a watch could not begin.
func Lacking(requests []auditv1.Event) error {
	allowed, told := sets.New[string](), sets.New[string]()
	for _, e := range requests {
		if e.Annotations[decision] == "allow" {
			allowed.Insert(actionOf(e))
			if e.Verb == "watch" {
				allowed.Insert(action("list", e.ObjectRef.APIGroup, Resource(e)))
			}
		}
	}
	var problems []error
	for _, e := range requests {
		if what := actionOf(e); e.Annotations[decision] == "forbid" && !allowed.Has(what) && !told.Has(what) {
			told.Insert(what)
			problems = append(problems, fmt.Errorf("%s has no right to %s: %s", e.User.Username, what, e.RequestURI))
		}
	}
	return errors.Join(problems...)
}

// Unused names each thing that the rules of a role allow and that none of the
// requests was for.
//
// Whoever watches must be able to list, for API servers that do not begin a watch
// with what is there: that is never missed.
func Unused(role string, rules []rbacv1.PolicyRule, requests []auditv1.Event) error {
	// With an object's name behind it, and without.
	done := sets.New[string]()
	for _, e := range requests {
		done.Insert(actionOf(e), actionOf(e)+" "+e.ObjectRef.Name)
	}
	var problems []error
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if verb == "list" && slices.Contains(rule.Verbs, "watch") {
						continue
					}
					for _, name := range names {
						what := action(verb, group, resource)
						if name != "" {
							what += " " + name
						}
						if !done.Has(what) {
							problems = append(problems, fmt.Errorf("%s allows to %s, which was never done", role, what))
						}
					}
				}
			}
		}
	}
	return errors.Join(problems...)
}
