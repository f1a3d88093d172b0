//! Routers as they are shown, and their routes as they change while they run.

use std::net::IpAddr;
use std::sync::Arc;

use super::engine::{Engine, Error};
use super::plan::Change;
use super::routes::{RouteSpec, RouterSpec};
use super::status::VERSION;
use super::text::BadSpec;
pub use crate::router::view::{
    ClassView, Explained, HopView, InterfaceView, NeighbourView, RouteView, Shorter,
};
use crate::router::{Net, Router};

crate::util::form::view! {
    /// Answer to `show routes`.
    Routes {
        /// Version of the JSON.
        version: u32,
        /// The router.
        router: String,
        /// Its routes in the order of their prefixes; those not in force at the end.
        routes: Vec<RouteView>,
    }

    /// Answer to `show neighbours`.
    Neighbours {
        /// Version of the JSON.
        version: u32,
        /// Those of all routers.
        neighbours: Vec<NeighbourView>,
    }
}

impl Engine {
    fn router_names(&self) -> Vec<String> {
        self.spec().routers.into_iter().map(|router| router.name).collect()
    }

    /// The router `name`, and the second of its clock.
    fn router(&self, name: &str) -> Result<(Arc<Router>, u32), Error> {
        let unknown = || Error::Unknown { what: "router", name: name.to_owned(), there: self.router_names() };
        self.graph().router(name).ok_or_else(unknown)
    }

    /// The routes of router `name`.
    pub fn routes(&self, name: &str) -> Result<Routes, Error> {
        let (router, now) = self.router(name)?;
        Ok(Routes { version: VERSION, router: name.to_owned(), routes: router.routes(now) })
    }

    /// The neighbours of all routers.
    pub fn neighbours(&self) -> Neighbours {
        let of = |name: String| self.graph().router(&name).map(|(router, now)| router.neighbours(now));
        let neighbours = self.router_names().into_iter().filter_map(of).flatten().collect();
        Neighbours { version: VERSION, neighbours }
    }

    /// What router `name` does with a packet to `to`, from port `from` if that is given.
    pub fn explain(&self, name: &str, to: IpAddr, from: Option<&str>) -> Result<Explained, Error> {
        let (router, now) = self.router(name)?;
        let from = from.map(|from| self.port(from)).transpose()?.map(|port| port.id);
        let mut explained = router.explain(to, from, now);
        explained.version = VERSION;
        if from.is_some() && explained.from.is_none() {
            return Err(Error::Cannot(format!("that port is not on router {name:?}")));
        }
        Ok(explained)
    }

    /// Adds a route to router `name`, or has the route of its prefix lead elsewhere.
    pub fn add_route(&self, name: &str, route: &RouteSpec) -> Result<Vec<Change>, Error> {
        self.set_route(name, route.prefix, Some(route))
    }

    /// Has router `name` have `route` as the only one of its prefix, or none.
    fn set_route(&self, name: &str, prefix: Net, route: Option<&RouteSpec>) -> Result<Vec<Change>, Error> {
        self.set::<RouterSpec>(name, |router| {
            let mut router = router.clone();
            router.routes.retain(|other| other.prefix.network() != prefix.network());
            router.routes.extend(route.cloned());
            Ok(router)
        })
    }

    /// Removes the route of `prefix` from router `name`.
    pub fn del_route(&self, name: &str, prefix: Net) -> Result<Vec<Change>, Error> {
        self.set_route(name, prefix, None).and_then(|changes| match changes.is_empty() {
            true => {
                let why = format!("router {name}: key `routes`: it has no route {prefix} of its own");
                Err(Error::Bad(BadSpec(vec![why])))
            }
            false => Ok(changes),
        })
    }
}
