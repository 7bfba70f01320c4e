"""An HTTP service that accepts orders and processes them in the background (Starlette; FastAPI is built on it).

The handler answers 202 as soon as the job is in the store, so no accepted order is lost. The worker runs in the same
event loop; in production it can also be another process: `conquiet worker module:app`. A client that
sends its order again, with the same Idempotency-Key, gets the same job.

Prints:

    202 {'job': 'order-7', 'state': 'Ready'}
    202 {'job': 'order-7', 'state': 'known already'}
    400 {'error': 'amount is missing'}
    404 {'error': 'there is no job order-8'}
    order-7 is Succeeded, shipped: [20]
"""

import asyncio
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from conquiet import Conquiet
from conquiet.errors import DuplicateJobError

app = Conquiet("sqlite:///orders.db")
shipped: list[int] = []


@app.task(queue="orders")
async def ship(amount: int) -> None:
    shipped.append(amount)


async def accept(request: Request) -> JSONResponse:
    order = await request.json()
    if "amount" not in order:
        return JSONResponse({"error": "amount is missing"}, 400)
    key = request.headers.get("Idempotency-Key")
    try:
        job = await ship.options(id=key).enqueue_async(order["amount"])
    except DuplicateJobError:
        return JSONResponse({"job": key, "state": "known already"}, 202)
    return JSONResponse({"job": job.id, "state": job.state}, 202)


async def look(request: Request) -> JSONResponse:
    job = await (await app.async_store()).get(request.path_params["id"])
    if job is None:
        return JSONResponse({"error": f"there is no job {request.path_params['id']}"}, 404)
    return JSONResponse({"job": job.id, "state": job.state})


@asynccontextmanager
async def lifespan(service: Starlette):
    worker = app.worker()
    running = asyncio.create_task(worker.run_async())
    yield
    worker.stop()  # it finishes the jobs it has started; the others wait in the store
    await running
    await app.close_async()


routes = [Route("/orders", accept, methods=["POST"]), Route("/orders/{id}", look)]
service = Starlette(routes=routes, lifespan=lifespan)  # serve it: uvicorn starlette_intake:service


async def main() -> None:
    transport = httpx.ASGITransport(service)  # calls the service without a network
    async with lifespan(service), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        for order in ({"amount": 20}, {"amount": 20}, {}):
            answer = await client.post("/orders", json=order, headers={"Idempotency-Key": "order-7"})
            print(answer.status_code, answer.json())
        answer = await client.get("/orders/order-8")
        print(answer.status_code, answer.json())
    await app.drain_async()  # the jobs that the worker had not started
    print("order-7 is", app.store.get("order-7").state + ",", "shipped:", shipped)
    await app.close_async()


if __name__ == "__main__":
    asyncio.run(main())
