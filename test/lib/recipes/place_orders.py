# Called by PlacedOrders.pm with the name of a recipe in the current folder: one line of JSON for each order.
import datetime
import decimal
import importlib
import json
import os
import sys

sys.path.insert(0, os.getcwd())
name = sys.argv[1]
if name == 'with_django':
    import django
    from django.conf import settings
    settings.configure(USE_TZ=True, DATABASES={'default': {
        'ENGINE': 'django.db.backends.postgresql', 'NAME': os.environ['PGDATABASE'],
        'HOST': os.environ['PGHOST'], 'PORT': os.environ['PGPORT'], 'USER': os.environ['PGUSER']}})
    django.setup()
recipe = importlib.import_module(name)


def order(**more):
    return {'id': 9007199254740993, 'customer': 'Ada', 'total': decimal.Decimal('99.50'), 'note': None, 'receipt': b'\x00\xff',
            'placed_at': datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc), **more}


def attempt(what, given):
    try:
        said = str(recipe.place_order(given))
    except Exception as error:
        said = recipe.reason_of(error)
    print(json.dumps([what, said]))


attempt('placed', order())
attempt('twice', order())
attempt('too large', order(id=2, customer='x' * 300000))
attempt('again', order(id=3))
